"""Moves tensors between devices, makes them from data, and copies them with their storages."""

import operator
import types

import torch

from simgpu.dispatch import host_copies
from simgpu.dispatch.default_devices import META, means_gpu, named
from simgpu.errors import NESTED, NotModelledError
from simgpu.handlers import handles
from simgpu.storage import storage_map
from simgpu.storage.storage_map import CPU, on_gpu

# Moves tensors between devices: every method that does, and what Module.to and similar are made of.

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


# Makes tensors from data (torch.tensor and similar): from numbers, arrays, and tensors on any device.

_NAMES = {torch.asarray: "obj", torch.scalar_tensor: "s"}  # the data argument's name, if it is not "data"


@handles(torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, Tensor.new_tensor)
def from_data(mode, function, args, kwargs):
    """Implements torch.tensor and similar: the data becomes a host tensor, which is copied to the GPU if requested."""
    kwargs = dict(kwargs)
    like = args[0] if function is Tensor.new_tensor else None
    rest = args[1:] if like is not None else args
    source = rest[0] if rest else kwargs.pop(_NAMES.get(function, "data"))
    device = kwargs.pop("device", None)
    if device is None:
        found = like if like is not None else source if isinstance(source, Tensor) else None
        device = None if found is None else storage_map.device_of(found)
    if isinstance(source, Tensor) and (means_gpu(device) or storage_map.of(source) is not None):
        return of_tensor(mode, function, source, device, **kwargs)
    if isinstance(source, (list, tuple)):
        read = read_in(mode, source)
        args = tuple(read if one is source else one for one in args)
        source = read
    if not means_gpu(device):
        return of_pytorch(mode, device, function, args, kwargs if device is None else {**kwargs, "device": device})
    requires_grad = kwargs.pop("requires_grad", False)
    kwargs.pop("pin_memory", None)
    if like is not None:
        kwargs.setdefault("dtype", like.dtype)
    host = torch.tensor if like is not None else function
    return moved(mode, host(source, **kwargs, device=CPU), mode.dispatch.machine.cuda).requires_grad_(requires_grad)


def of_tensor(mode, function, source, device, dtype=None, copy=None, requires_grad=False, pin_memory=False):
    """Makes a tensor from a tensor: torch.as_tensor and torch.asarray copy if they must, the others always.

    (torch/csrc/utils/tensor_new.cpp)
    """
    if function is torch.as_tensor:
        return moved(mode, source, device, dtype)
    if function is torch.asarray:
        there = moved(mode, source, device, dtype)
        made = there.clone() if copy and there is source else there
        if made.requires_grad == requires_grad:
            return made
        return made.requires_grad_() if requires_grad else made.detach()
    return moved(mode, source.detach(), device, dtype, copy=True).requires_grad_(requires_grad)


def read_in(mode, data):
    """Replaces each simulated tensor in nested lists by a host tensor with its values; returns `data` itself if
    none.
    """
    if isinstance(data, (list, tuple)):
        read = [read_in(mode, one) for one in data]
        return data if all(map(operator.is_, read, data)) else read
    if not isinstance(data, Tensor) or storage_map.of(data) is None:
        return data
    with mode:
        numbers = data.item() if data.numel() == 1 else data.tolist()
    return torch.tensor(numbers, dtype=data.dtype, device=CPU).reshape(data.shape)


@handles(Tensor.new)
def new(mode, function, args, kwargs):
    """Implements the legacy constructor: `x.new(3, 4)` and `x.new(size)` are empty tensors, `x.new([1, 2])` holds
    data.
    """
    tensor, *rest = args
    if not on_gpu(tensor) or not rest or isinstance(rest[0], (int, torch.Size, Tensor)):
        return function(*args, **{name: value for name, value in kwargs.items() if name != "device"})
    if not isinstance(rest[0], (list, tuple)) and not hasattr(rest[0], "__array__"):
        return function(*args, **kwargs)  # a storage
    return from_data(mode, torch.tensor, rest, {"dtype": tensor.dtype, "device": mode.dispatch.machine.cuda})


# Implements copy.deepcopy of tensors on the simulated GPU: the whole storage is copied, once for all of its views.

_METHOD = torch.Tensor.__deepcopy__
# PyTorch's own method without its check for modes that handle the call as a whole, so that each inner call is seen.
_SEEN = types.FunctionType(
    _METHOD.__code__, {**_METHOD.__globals__, "has_torch_function_unary": lambda tensor: False}, _METHOD.__name__
)


@handles(_METHOD)
def deep_copy(mode, function, args, kwargs):
    if storage_map.of(args[0]) is None:
        return function(*args, **kwargs)
    with mode:
        return _SEEN(*args, **kwargs)
