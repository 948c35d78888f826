"""Moves tensors between devices: every method that does, and what Module.to and similar are made of."""

import torch

from simgpu.dispatch import host_copies
from simgpu.dispatch.default_devices import META, means_gpu, named
from simgpu.errors import NESTED, NotModelledError
from simgpu.handlers import handles
from simgpu.storage import storage_map
from simgpu.storage.storage_map import CPU, on_gpu

Tensor = torch.Tensor


def moved(mode, tensor, device, dtype=None, memory_format=None, copy=None, non_blocking=False):
    """Implements `tensor.to(device, dtype, non_blocking, copy, memory_format=memory_format)` for any pair of
    devices.
    """
    here = storage_map.device_of(tensor)
    gpu = mode.dispatch.machine.cuda
    there = here if device is None else gpu if means_gpu(device) else named(device)
    if tensor.is_nested and tensor.layout is torch.strided and there == gpu:
        raise NotModelledError(NESTED)
    if tensor.layout is not torch.strided and gpu in (here, there):
        raise NotModelledError(f"the simulated GPU does not model tensors of layout {tensor.layout}")
    if here == there:
        options = {"dtype": dtype or tensor.dtype, "copy": bool(copy)}
        if memory_format is not None:
            options["memory_format"] = memory_format
        try:
            return tensor.to(**options)
        except RuntimeError:  # for an impossible layout
            if here == gpu:
                host_copies.take_in_vain(mode.dispatch, tensor, dtype)
            raise
    if there == gpu:
        return of_its_class(tensor, host_copies.to_gpu(mode.dispatch, tensor, dtype, memory_format, non_blocking))
    if there.type == "meta":  # pyright: ignore[reportOptionalMemberAccess]
        return mode.new_tensors_in("meta", host_copies.same_layout, (tensor, dtype, memory_format), {})
    if there.type == "cpu" and here != META:  # pyright: ignore[reportOptionalMemberAccess]
        return of_its_class(tensor, host_copies.to_host(mode.dispatch, tensor, dtype, memory_format, non_blocking))
    return tensor.to(there, dtype or tensor.dtype)


def of_its_class(tensor, copy):
    """Returns a copy as the tensor's subclass, if its results are of it (Tensor.__torch_function__).

    A lazy module's buffer is an example.
    """
    kind = type(tensor)
    if kind is Tensor or issubclass(kind, torch.nn.Parameter) or copy is tensor:
        return copy
    keeps = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    return copy.as_subclass(kind) if keeps else copy


def stays_real(tensor, device) -> bool:
    """Returns whether neither the tensor nor its target device (None is its own) is simulated, so PyTorch handles
    it.
    """
    return storage_map.of(tensor) is None and not means_gpu(device)


def of_pytorch(mode, device, function, args, kwargs):
    """Runs PyTorch's own move of a tensor to a device (None is its own); what goes to "meta" is PyTorch's meta
    tensor.
    """
    there = named(device)
    if there is not None and there.type == "meta":
        return mode.new_tensors_in("meta", function, args, kwargs)
    return function(*args, **kwargs)


@handles(Tensor.to)
def to(mode, function, args, kwargs):
    """Implements Tensor.to in each of its forms."""
    tensor, *rest = args
    options = dict(kwargs)
    copy, memory_format = options.pop("copy", None), options.get("memory_format")
    last = 2 if rest and isinstance(rest[0], (torch.dtype, type, Tensor)) else 3  # the position of `copy`
    if len(rest) == last + 1:
        copy = rest.pop()
    device, dtype, non_blocking, _ = parse_to(mode, torch._C._nn._parse_to, rest, options)  # pyright: ignore[reportAttributeAccessIssue]
    if stays_real(tensor, device):
        return of_pytorch(mode, device, function, args, kwargs)
    return moved(mode, tensor, device, dtype, memory_format, copy, non_blocking)


@handles(torch._C._nn._parse_to)  # pyright: ignore[reportAttributeAccessIssue]
def parse_to(mode, function, args, kwargs):
    """Parses the arguments of Module.to, PackedSequence.to and Tensor.to.

    (torch/csrc/utils/python_arg_parser.h, parse_to_conversion) It creates no tensor, so a named device stays as it is.
    An index is the accelerator's, which C++ would look for. A device given by a tensor is where that tensor reports to
    be.
    """
    given = {**kwargs, **({0: args[0]} if args else {})}
    for key in (0, "device"):
        if type(given.get(key)) is int:
            given[key] = torch.device("cuda", given[key])
    args = (given.pop(0), *args[1:]) if args else ()
    device, *rest = function(*args, **given)
    like = next((one for one in (*args[:1], given.get("tensor")) if isinstance(one, Tensor)), None)
    return (device if like is None else storage_map.device_of(like), *rest)


@handles(Tensor.cuda)
def cuda(mode, function, args, kwargs):
    """Implements Tensor.cuda: a move to the simulated GPU."""
    tensor, *rest = args
    device = named(rest[0] if rest else kwargs.get("device"))
    if device is not None and device.type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    means_gpu(device)
    non_blocking = bool(rest[1] if len(rest) > 1 else kwargs.get("non_blocking"))
    return moved(mode, tensor, mode.dispatch.machine.cuda, None, kwargs.get("memory_format"), non_blocking=non_blocking)


@handles(Tensor.cpu)
def cpu(mode, function, args, kwargs):
    """Implements Tensor.cpu: a move to the host."""
    if stays_real(args[0], None):
        return function(*args, **kwargs)
    return moved(mode, args[0], CPU, None, kwargs.get("memory_format"))


@handles(Tensor.type)
def cast_to_type(mode, function, args, kwargs):
    """Implements Tensor.type.

    `type()` returns a tensor's type, and `type(wanted)` converts it: a dtype keeps the device, and a legacy type names
    one (THPVariable_type in tools/autograd/templates/python_variable_methods.cpp).
    """
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    if wanted is None:
        name = function(tensor)
        where = "torch.cuda." if on_gpu(tensor) else "torch."
        return name.replace("torch.meta.", where) if storage_map.of(tensor) is not None else name
    if isinstance(wanted, torch.dtype):
        return function(*args, **kwargs)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__qualname__}"
    device = mode.dispatch.machine.cuda if "cuda." in name else CPU
    if stays_real(tensor, device):
        return function(*args, **kwargs)
    dtype = torch.empty(0, device=CPU).type(name.replace("cuda.", "")).dtype
    non_blocking = bool(rest[1] if len(rest) > 1 else kwargs.get("non_blocking"))
    return moved(mode, tensor, device, dtype, kwargs.get("memory_format"), non_blocking=non_blocking)


@handles(Tensor.type_as)
def type_as(mode, function, args, kwargs):
    """Implements Tensor.type_as: a move to the device and dtype of a second tensor."""
    tensor, other = (*args, *kwargs.values())
    device = storage_map.device_of(other)
    if stays_real(tensor, device):
        return of_pytorch(mode, device, function, args, kwargs)
    return moved(mode, tensor, device, other.dtype)


@handles(Tensor.data.__set__)  # pyright: ignore[reportAttributeAccessIssue]
def set_data(mode, function, args, kwargs):
    """Implements `tensor.data = value`, also across devices."""
    tensor, value = args
    if torch._has_compatible_shallow_copy_type(tensor, value):
        return function(*args)
    return host_copies.set_data(mode.dispatch, tensor, value)


@handles(Tensor.grad.__set__)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
def set_grad(mode, function, args, kwargs):
    """Implements `tensor.grad = value` for two host tensors of which one represents a copy from the GPU."""
    tensor, value = args
    on_host = isinstance(value, Tensor) and not any(map(on_gpu, args))
    if on_host and tensor.is_meta != value.is_meta:
        value = host_copies.as_host(mode.dispatch, value, torch.device("meta" if tensor.is_meta else "cpu"))
    return function(tensor, value)


@handles(torch._has_compatible_shallow_copy_type)
def compatible(mode, function, args, kwargs):
    """Returns whether `tensor.data = other` is allowed: for dense tensors on CPU and CUDA always, in any mixture.

    (c10/core/TensorImpl.h, has_compatible_shallow_copy_type)
    """
    if any(storage_map.of(tensor) is not None for tensor in args):
        return True
    return function(*args)


@handles(Tensor.is_pinned)
def is_pinned(mode, function, args, kwargs):
    """Returns whether a host tensor was pinned here."""
    return storage_map.is_pinned(args[0].untyped_storage())
