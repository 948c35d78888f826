"""Handles everything that reads a simulated tensor's values: printing, item(), bool(), numpy() and similar calls."""

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import placeholder_values
from simgpu.device.machine import remedy
from simgpu.dispatch import asserts, assume_finite
from simgpu.dispatch.host_copies import to_host
from simgpu.errors import NotModelledError, NoValueError
from simgpu.handlers import handles
from simgpu.placeholder_values import zeros_like
from simgpu.storage import storage_map, values
from simgpu.storage.storage_map import on_gpu
from simgpu.unmodeled import users_frame

Tensor = torch.Tensor


@handles(Tensor.__repr__, Tensor.__str__)
def representation(mode, function, args, kwargs):
    """Implements repr() and str(): as PyTorch if values are known, else device, size, and what else PyTorch would
    show.
    """
    tensor = args[0]
    if storage_map.of(tensor) is None:
        return function(*args, **kwargs)
    return _shown(mode, tensor)


def _shown(mode, tensor) -> str:
    known = values.of(tensor)
    if known is None:
        return _described(tensor)
    if not on_gpu(tensor):
        return repr(known)
    with mode, torch.no_grad():  # PyTorch's code, which allocates on the GPU for a while, as it does on CUDA
        return torch._tensor_str._str_intern(tensor)  # pyright: ignore[reportAttributeAccessIssue]


def _described(tensor) -> str:
    parts = [f"device='{storage_map.device_of(tensor)}'", f"size={tuple(tensor.shape)}"]
    if tensor.dtype != torch.get_default_dtype():
        parts.append(f"dtype={tensor.dtype}")
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"tensor(..., {', '.join(parts)})"


@handles(Tensor.__format__)
def formatted(mode, function, args, kwargs):
    """Implements format(): a floating-point scalar as item() returns it, anything else as repr() does."""
    tensor, spec = args
    if storage_map.of(tensor) is None:
        return function(*args)
    if tensor.dim() == 0 and tensor.is_floating_point():
        return format(item(mode, Tensor.item, (tensor,), {}), spec)
    if tensor.dim() == 0 and values.of(tensor) is not None:
        return format(item(mode, Tensor.item, (tensor,), {}), spec)
    return format(_shown(mode, tensor), spec)


@handles(Tensor.item, Tensor.__float__)
def item(mode, function, args, kwargs):
    """Implements item() and float(): returns the value if it is known, else nan for a float, else raises
    NoValueError.
    """
    tensor = args[0]
    if type(tensor) is Tensor and tensor.is_cpu and torch._C._len_torch_dispatch_stack() == 1:
        with torch._C._DisableTorchDispatch():  # an optimizer's step calls this per parameter, and no mode would see it
            return function(*args, **kwargs)
    if storage_map.of(tensor) is None:
        return function(*args, **kwargs)
    if tensor.numel() != 1:
        raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
    mode.dispatch.read_value(tensor)
    if values.of(tensor) is not None:
        return function(values.of(tensor))
    known = assume_finite.answer(tensor)
    if known is not None:
        return known
    if not tensor.dtype.is_floating_point:
        raise NoValueError(_no_value("item()", tensor))
    number = values.nan()
    return placeholder_values.exact(number) if function is Tensor.__float__ else number


_TRUTH = (Tensor.__bool__, torch.is_nonzero, Tensor.is_nonzero)
_TO_NUMPY = (Tensor.numpy, Tensor.__array__)


def _forced(kwargs) -> bool:
    """Returns whether numpy(force=True) was called, which detaches."""
    return bool(kwargs.get("force"))


def _no_value(what: str, tensor) -> str:
    return (
        f"{what} asks for the value of a simulated tensor ({_described(tensor)}), which has none: the simulated GPU "
        f"computes memory, not values. {remedy()}; or keep decisions that depend on data on the CPU."
    )


@handles(Tensor.__bool__, Tensor.__int__, Tensor.__index__, Tensor.tolist, Tensor.numpy, Tensor.__array__)
@handles(torch.is_nonzero, Tensor.is_nonzero, Tensor.__complex__)
def needs_value(mode, function, args, kwargs):
    """Handles calls that need a value: returns the known one or what a sound run would have, else raises
    NoValueError.
    """
    if function in _TO_NUMPY and on_gpu(args[0]):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    if function in _TO_NUMPY and storage_map.of(args[0]) is not None and args[0].requires_grad and not _forced(kwargs):
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )  # torch/csrc/utils/tensor_numpy.cpp
    if function in _TRUTH and args[0].numel() == 1:
        known = assume_finite.answer(args[0])
        if known is None and storage_map.of(args[0]) is not None and values.of(args[0]) is None:
            known = assume_finite.assumed()
        if known is not None:
            mode.dispatch.read_value(args[0])
            return bool(known)
    return _of_values(mode, function, args, kwargs)


def _of_values(mode, function, args, kwargs):
    """Computes the result from the tensors' known values. Raises NoValueError if one has none."""
    for argument in args[:2]:
        if isinstance(argument, Tensor) and values.of(argument) is not None:
            mode.dispatch.read_value(argument)
    if function.__name__ == "tolist" and on_gpu(args[0]) and args[0].numel():
        # the whole tensor is copied (torch/csrc/utils/tensor_list.cpp, tensor_to_list)
        to_host(mode.dispatch, args[0].detach())
    args = tuple(_with_values(argument) for argument in args)
    for argument in args[:2]:
        if isinstance(argument, Tensor) and storage_map.of(argument) is not None:
            raise NoValueError(_no_value(f"{function.__name__.strip('_')}()", argument))
    return function(*args, **kwargs)


def _found(mode, what: str, given, compared) -> bool:
    """Returns the value of a comparison on the GPU, one boolean; its NoValueError names the caller's function."""
    if values.of(compared) is None:
        raise NoValueError(_no_value(f"{what}()", given))
    return bool(item(mode, Tensor.item, (compared,), {}))


def _every(mode, what: str, given, compared) -> bool:
    """Returns whether all elements of a comparison are true; C++ drops the comparison after that."""
    found = _found(mode, what, given, compared.all())
    del compared
    return found


@handles(Tensor.__contains__)
def contains(mode, function, args, kwargs):
    """Implements `element in tensor` (torch/_tensor.py)."""
    tensor, element = args
    if storage_map.of(tensor) is None or not isinstance(element, (Tensor, int, float, complex)):
        return function(*args)
    return _found(mode, "contains", tensor, (element == tensor).any())


@handles(torch.equal, Tensor.equal)
def equal(mode, function, args, kwargs):
    """Implements torch.equal (aten/src/ATen/native/cuda/Equal.cpp).

    Tensors of different sizes, or with the same memory, are not compared element by element.
    """
    tensor, other = (*args, *kwargs.values())[:2]
    if not (on_gpu(tensor) and on_gpu(other)):
        return _of_values(mode, function, args, kwargs)
    if tensor.shape != other.shape:
        return False
    alike = tensor.stride() == other.stride() and tensor.storage_offset() == other.storage_offset()
    if tensor.untyped_storage() is other.untyped_storage() and alike:
        return True
    return _every(mode, "equal", tensor, torch.eq(tensor, other))


@handles(torch.allclose, Tensor.allclose)
def all_close(mode, function, args, kwargs):
    """Implements torch.allclose (aten/src/ATen/native/TensorCompare.cpp, allclose)."""
    if not on_gpu(args[0]):
        return _of_values(mode, function, args, kwargs)
    return _every(mode, "allclose", args[0], torch.isclose(*args, **kwargs))


def _with_values(argument):
    """Returns a tensor's values if they are known, else the argument itself."""
    known = values.of(argument) if isinstance(argument, Tensor) and storage_map.of(argument) is not None else None
    return argument if known is None else known.clone()


STANDING_IN = (Tensor.item, Tensor.__float__, Tensor.__bool__, Tensor.__int__, Tensor.__index__, Tensor.__complex__)
STANDING_IN += (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.is_nonzero, torch.is_nonzero)
STANDING_IN += (torch.equal, Tensor.equal, torch.allclose, Tensor.allclose, Tensor.__contains__)


# Python converts their results to exact numbers in any case
_EXACT = {Tensor.__float__, Tensor.__int__, Tensor.__index__}
_TRUE_OR_FALSE = {*_TRUTH, torch.equal, Tensor.equal, torch.allclose, Tensor.allclose}


def with_placeholder(machine, function, args, kwargs):
    """Returns what one of STANDING_IN, which found no values, returns for zeros.

    If an `assert` alone reads the truth value, returns the value with which it holds.
    """
    truth = function in _TRUE_OR_FALSE or (function is Tensor.item and args[0].dtype == torch.bool)
    wanted = asserts.held(users_frame()) if truth else None
    if wanted is not None:
        machine.placeholder_values.note("assert, as one that holds")
        return wanted
    given = tuple(
        _or_zeros(one) if isinstance(one, Tensor) and storage_map.of(one) is not None else one for one in args
    )
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        answer = function(*given, **kwargs)
    answer = placeholder_values.given(machine.placeholder_values, f"{function.__name__.strip('_')}()", answer)
    return placeholder_values.exact(answer, function is Tensor.__index__) if function in _EXACT else answer


def _or_zeros(tensor):
    known = _with_values(tensor)
    return zeros_like(tensor) if known is tensor else known


@handles(Tensor.__dlpack__, Tensor.__dlpack_device__)
def given_to_others(mode, function, args, kwargs):
    if not on_gpu(args[0]):
        return function(*args, **kwargs)
    raise NotModelledError(
        "the simulated GPU has no memory that another library could work on, so DLPack's exchange is not modelled: "
        "copy the tensor to the CPU first"
    )
