"""Copies between the host and the simulated GPU, with their gradients.

A tensor that is copied to the GPU loses its values. One that is copied to the host has none there either; it uses no
host memory, and is counted (`Machine.host_bytes`).
"""

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.dispatch.dispatch_mode import DispatchMode
from simgpu.storage import storage_map, values
from simgpu.storage.layout import is_dense


def same_layout(tensor, dtype, memory_format):
    """Returns a meta tensor with the layout of PyTorch's copy; a dense one keeps its strides.

    (aten/src/ATen/native/TensorConversions.cpp, _to_copy)
    """
    options = {"dtype": dtype or tensor.dtype, "device": "meta"}
    if memory_format in (None, torch.preserve_format):
        if is_dense(tensor):
            return torch.empty_strided(tensor.shape, tensor.stride(), **options)
        memory_format = suggest_memory_format(tensor)
    return torch.empty(tensor.shape, memory_format=memory_format, **options)


def laid_out(mode: DispatchMode, source, dtype, memory_format, to_host: bool):
    """Returns `same_layout` for a copy to the host or to the GPU, with PyTorch's errors."""
    try:
        made = same_layout(source, dtype, memory_format)
        if not to_host and source.is_meta and storage_map.of(source) is None:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        return made
    except RuntimeError:
        if not to_host:
            take_in_vain(mode, source, dtype)
        raise


def take_in_vain(mode: DispatchMode, source, dtype) -> None:
    """Allocates and frees the block of an impossible copy, because PyTorch creates the new tensor before it fails."""
    mode.adopt(torch.empty(source.shape, dtype=dtype or source.dtype, device="meta"))


def copied(mode: DispatchMode, tensor, dtype, memory_format, to_host: bool, non_blocking: bool = False):
    """Returns a new tensor, on the host or on the GPU.

    On the host it is a real one if all tensors have values. Otherwise it has those that are known, and uses no host
    memory.
    """
    if made_of_parts(tensor):
        if dtype not in (None, tensor.dtype):
            tensor = tensor.to(dtype)  # on its own side, as PyTorch's copy does (Copy.cu, copy_kernel_cuda)
        return with_parts(tensor, lambda part: copied(mode, part, None, memory_format, to_host, non_blocking))
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        source = tensor.detach()
        made = laid_out(mode, source, dtype, memory_format, to_host)
        if to_host:
            mode.count_on_host(made)
            if non_blocking:  # PyTorch pins it in that case (TensorConversions.cpp, pin_out)
                storage_map.pin(made.untyped_storage())
        else:
            mode.adopt(made)
        mode.cross(made, source, not to_host, non_blocking)
    values.carry(source, made)  # not `tensor`, which may be a lazy module's without a shape
    return of_the_host(mode, made, non_blocking) if to_host else made


def made_of_parts(tensor) -> bool:
    """Returns whether a tensor's subclass wraps other tensors, as a DTensor wraps the rank's shard."""
    return hasattr(type(tensor), "__tensor_flatten__")


def with_parts(tensor, change):
    """Returns a tensor of the same subclass whose inner tensors are `change(part)`."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        source = tensor.detach()
        names, rest = source.__tensor_flatten__()
        parts = {name: getattr(source, name) for name in names}  # may include a mesh
        parts = {name: change(one) if isinstance(one, torch.Tensor) else one for name, one in parts.items()}
        return type(tensor).__tensor_unflatten__(parts, rest, source.shape, source.stride())


def of_the_host(mode: DispatchMode, made, pinned: bool = False):
    """Returns the real host tensor for one that was copied there, if all tensors have values."""
    if mode.machine.host_memory is None:
        return made
    known = values.of(made)
    if known is None:
        return made
    if pinned:
        storage_map.pin(known.untyped_storage())
    return known


class Crossing(torch.autograd.Function):
    """A copy between host and GPU that autograd differentiates."""

    @staticmethod
    def forward(ctx, tensor, mode, dtype, memory_format, to_host, non_blocking):
        ctx.mode, ctx.dtype, ctx.to_host = mode, tensor.dtype, to_host
        ctx.real = storage_map.of(tensor) is None
        return copied(mode, tensor, dtype, memory_format, to_host, non_blocking)

    @staticmethod
    def backward(ctx, grad):
        back = copied(ctx.mode, grad, ctx.dtype, None, not ctx.to_host)
        if ctx.real and storage_map.of(back) is not None:
            # A real CPU tensor needs a real gradient, and there are no values to put in it.
            if made_of_parts(back):
                back = as_host(ctx.mode, back, storage_map.CPU)
            else:
                back = torch.full(grad.shape, float("nan"), dtype=ctx.dtype, device="cpu")
        return back, None, None, None, None, None


def _crossed(tensor, mode: DispatchMode, *how):
    """Copies a tensor, with an autograd node only if it requires a gradient.

    Each node is counted, and the engine orders nodes by this count (`autograd.sequence_numbers`).
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        return Crossing.apply(tensor, mode, *how)
    return copied(mode, tensor, *how)


def to_host(mode: DispatchMode, tensor, dtype=None, memory_format=None, non_blocking=False):
    """Implements `tensor.to("cpu", dtype)` for a simulated tensor; returns it unchanged if it is there with that
    dtype.
    """
    if not storage_map.on_gpu(tensor) and dtype in (None, tensor.dtype):
        return tensor
    return _crossed(tensor, mode, dtype, memory_format, True, non_blocking)


def to_gpu(mode: DispatchMode, tensor, dtype=None, memory_format=None, non_blocking=False):
    """Implements `tensor.to("cuda", dtype)` for a tensor that is not on the GPU."""
    return _crossed(tensor, mode, dtype, memory_format, False, non_blocking)


def set_data(mode: DispatchMode, tensor, value) -> None:
    """Implements `tensor.data = value` as Module.cuda() uses it, where PyTorch refuses to mix CPU and meta tensors.

    It also covers meta tensors of which one was made in inference mode. The two exchange their implementations, but the
    Python object, its requires_grad and its gradient stay. As on CUDA the gradient is not moved. It must be of the
    tensor's kind (meta or not), and keeps its values.
    """
    with _disable_current_modes():  # what is created here uses no memory
        # for example a gradient that only C++ references
        if tensor.is_meta and value.is_meta and tensor._use_count() > 1:
            tensor.data = as_normal(value)
            return
        requires_grad, gradient = tensor.requires_grad, tensor.grad
        tensor.grad = None
        shell = value.detach()
        if gradient is not None:
            gradient = of_kind(mode, gradient, shell.device)
            form = {"dtype": gradient.dtype, "device": shell.device}
            with torch.inference_mode(shell.is_inference()):  # autograd requires that both agree in this
                shell = torch.empty_strided(gradient.shape, gradient.stride(), **form)
        torch._C._swap_tensor_impl(tensor, shell)
        with torch._C.DisableTorchFunction():  # a lazy module's parameter raises, because it has no shape yet
            tensor.requires_grad_(requires_grad)
        if gradient is not None:
            tensor.grad = gradient
            tensor.data = value.detach()


def as_host(mode: DispatchMode, tensor, device):
    """Returns a host tensor as a meta or as a real one (`of_kind`), without using GPU memory."""
    with _disable_current_modes():
        return of_kind(mode, tensor, device)


def as_normal(value):
    """Returns a view of a tensor from inference mode that is not an inference tensor."""
    with torch.inference_mode(False):
        view = torch.empty(0, dtype=value.dtype, device=value.device)
        return view.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def of_kind(mode: DispatchMode, tensor, device):
    """Converts `tensor` in place to a meta tensor or to a real one, with its known values, or NaN."""
    if tensor.is_meta == (device.type == "meta"):
        return tensor
    options = {"dtype": tensor.dtype, "device": device}
    if made_of_parts(tensor):
        shell = with_parts(tensor, lambda part: of_kind(mode, part, device))
    elif device.type == "meta":
        shell = torch.empty_strided(tensor.shape, tensor.stride(), **options)
        mode.count_on_host(shell)
        values.carry(tensor.detach(), shell)
    else:
        known = values.of(tensor)
        shell = torch.full(tensor.shape, float("nan"), **options) if known is None else known.clone()
    if tensor.grad_fn is not None:
        return shell
    torch._C._swap_tensor_impl(tensor, shell)
    return tensor
