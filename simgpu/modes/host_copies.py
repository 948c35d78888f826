"""Copies between the host and the simulated GPU, with their gradients.

A tensor that comes to the GPU leaves its values behind; one that goes to the host has none there either, takes no host
memory, and is counted (`Machine.host_bytes`).
"""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.modes.dispatch_mode import DispatchMode
from simgpu.tensors import residence, values
from simgpu.tensors.layout import is_dense


def same_layout(tensor, dtype, memory_format):
    """A tensor that lies as PyTorch's copy would (aten/src/ATen/native/TensorConversions.cpp, _to_copy): a dense one
    keeps its strides."""
    options = {"dtype": dtype or tensor.dtype, "device": "meta"}
    if memory_format in (None, torch.preserve_format):
        if is_dense(tensor):
            return torch.empty_strided(tensor.shape, tensor.stride(), **options)
        memory_format = suggest_memory_format(tensor)
    return torch.empty(tensor.shape, memory_format=memory_format, **options)


def copied(mode: DispatchMode, tensor, dtype, memory_format, to_host: bool, non_blocking: bool = False):
    """A new tensor without values, on the host or on the GPU."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        source = tensor.detach()
        made = same_layout(source, dtype, memory_format)
        if to_host:
            mode.settle_on_host(made)
            if non_blocking:  # PyTorch makes it pinned then (TensorConversions.cpp, pin_out)
                residence.pin(made.untyped_storage())
        else:
            mode.adopt(made)
        mode.cross(made, source, not to_host, non_blocking)
    values.carry(tensor, made)
    return made


class Crossing(torch.autograd.Function):
    """A copy between host and GPU that autograd follows back."""

    @staticmethod
    def forward(ctx, tensor, mode, dtype, memory_format, to_host, non_blocking):
        ctx.mode, ctx.dtype, ctx.to_host = mode, tensor.dtype, to_host
        ctx.real = residence.of(tensor) is None
        return copied(mode, tensor, dtype, memory_format, to_host, non_blocking)

    @staticmethod
    def backward(ctx, grad):
        if ctx.real:  # a real CPU tensor wants a real gradient, and there are no values to put in it
            back = torch.full(grad.shape, float("nan"), dtype=ctx.dtype, device="cpu")
        else:
            back = copied(ctx.mode, grad, ctx.dtype, None, not ctx.to_host)
        return back, None, None, None, None, None


def to_host(mode: DispatchMode, tensor, dtype=None, memory_format=None, non_blocking=False):
    """`tensor.to("cpu", dtype)` for a simulated tensor; the tensor itself if it is on the host with that dtype."""
    if not residence.on_gpu(tensor) and dtype in (None, tensor.dtype):
        return tensor
    return Crossing.apply(tensor, mode, dtype, memory_format, True, non_blocking)


def to_gpu(mode: DispatchMode, tensor, dtype=None, memory_format=None, non_blocking=False):
    """`tensor.to("cuda", dtype)` for a tensor that is not on the GPU."""
    if tensor.is_meta and residence.of(tensor) is None:
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of "
            "torch.nn.Module.to() when moving module from meta to a different device."
        )
    return Crossing.apply(tensor, mode, dtype, memory_format, False, non_blocking)


def set_data(tensor, value, move_gradient) -> None:
    """`tensor.data = value` where the two are on different devices, as Module.cuda() does it.

    PyTorch refuses that between CPU and meta, so the two exchange their implementations; the Python object, its
    requires_grad and its gradient (brought over by `move_gradient`) stay.
    """
    requires_grad, gradient = tensor.requires_grad, tensor.grad
    shell = value.detach()
    if gradient is not None and residence.on_gpu(gradient) != residence.on_gpu(shell):
        gradient = move_gradient(gradient)
    tensor.grad = None
    torch._C._swap_tensor_impl(tensor, shell)
    tensor.requires_grad_(requires_grad)
    tensor.grad = gradient
