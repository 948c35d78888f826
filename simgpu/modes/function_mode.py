"""Lets plain PyTorch code say "cuda": the function mode.

It sees each call of a PyTorch function from Python. On the way in it sends "cuda" to "meta"; on the way out it reports
cuda:0; and where PyTorch's C++ would ask `is_cuda()` and branch, it takes CUDA's branch.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from simgpu.composites import branches, encoder, meta_shapes, rnn, sdpa  # noqa: F401  (they register what they hold)
from simgpu.handlers import handler_of, handles
from simgpu.machine import current
from simgpu.modes import host_copies, sound_run  # noqa: F401
from simgpu.modes.dispatch_mode import DispatchMode
from simgpu.streams import Generator
from simgpu.tensors import residence
from simgpu.tensors.residence import CPU, CUDA, HOST, on_gpu
from simgpu.tracebacks import as_on_gpu

Tensor = torch.Tensor
META = torch.device("meta")


def means_gpu(device) -> bool:
    """Whether a device argument (str, int, torch.device or None) names the simulated GPU."""
    if device is None:
        return False
    device = torch.device("cuda", device) if type(device) is int else torch.device(device)
    if device.type != "cuda":
        return False
    if device.index not in (None, 0):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return True


class FunctionMode(TorchFunctionMode):
    """The face of the simulated GPU in front of `dispatch`."""

    def __init__(self, dispatch: DispatchMode):
        super().__init__()
        self.dispatch = dispatch
        self.assumed = None  # gives what bool() of a simulated tensor is, in PyTorch's own checks: see `finite.passed`

    def __torch_function__(self, function, types, args=(), kwargs=None):
        dispatch = self.dispatch
        if not dispatch.machine.active or dispatch.machine is not current():
            return function(*args, **(kwargs or {}))
        default = torch.utils._device.CURRENT_DEVICE  # its mode is below this one
        if default is not None and function in _device_constructors() and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": default}
        handler = handler_of(function)
        dispatch.function_depth += 1
        try:
            if kwargs and kwargs.get("generator") is not None:
                check_generator(kwargs["generator"], args, kwargs)
            if handler is not None:
                return handler(self, function, args, kwargs or {})
            if kwargs and kwargs.get("pin_memory") and not means_gpu(kwargs.get("device")):
                return self.pinned(function, args, kwargs)
            if kwargs and kwargs.get("device") is not None:
                return self.with_device(function, args, kwargs)
            return function(*args, **kwargs) if kwargs else function(*args)
        except torch.OutOfMemoryError as error:
            del args, kwargs  # the traceback keeps this frame, which must not keep tensors that C++ would have let go
            raise error.with_traceback(as_on_gpu(error.__traceback__)) from None
        finally:
            dispatch.function_depth -= 1

    def with_device(self, function, args, kwargs):
        """A call that names a device: cuda is sent to meta, and PyTorch's own meta stays what it is."""
        device = kwargs["device"]
        if means_gpu(device):
            kwargs = {**kwargs, "device": META}
            if isinstance(kwargs.get("generator"), Generator):
                kwargs["generator"] = None
            return function(*args, **kwargs)
        if torch.device(device).type == "meta":
            return self.new_tensors_in("meta", function, args, kwargs)
        return function(*args, **kwargs)

    def pinned(self, function, args, kwargs):
        """A call for pinned memory of the host. What torch.empty makes waits for a copy from the GPU, as save_on_cpu's
        does: it is counted and has no values. Others have theirs, in memory that is not pinned.
        """
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if function is torch.empty:
            made = self.new_tensors_in(HOST, function, args, {**kwargs, "device": META})
        else:
            made = function(*args, **kwargs)
        residence.pin(made.untyped_storage())
        return made

    def new_tensors_in(self, place, function, args, kwargs):
        """A call whose new tensors are HOST's, or PyTorch's own on "meta"."""
        outer, self.dispatch.new_tensors_go = self.dispatch.new_tensors_go, place
        try:
            return function(*args, **kwargs)
        finally:
            self.dispatch.new_tensors_go = outer


def check_generator(generator, args, kwargs) -> None:
    """RuntimeError, as from PyTorch (aten/src/ATen/core/Generator.h), if a generator is not of the device of the call:
    the one that it names, or its tensors'."""
    device = kwargs.get("device")
    if means_gpu(device) or (device is None and any(isinstance(one, Tensor) and on_gpu(one) for one in args)):
        wanted = "cuda"
    elif device is None or torch.device(device).type == "cpu":
        wanted = "cpu"
    else:
        return
    found = "cuda" if isinstance(generator, Generator) else generator.device.type
    if found != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")


@handles(torch.device)
def device_from(mode, function, args, kwargs):
    """torch.device(0) is a GPU's, the accelerator's, which C++ would look for."""
    if args and type(args[0]) is int:
        return function("cuda", *args)
    return function(*args, **kwargs)


# What a tensor says of itself


@handles(Tensor.device.__get__)
def device(mode, function, args, kwargs):
    found = function(*args)
    return residence.device_of(args[0]) if found == META else found


@handles(Tensor.is_cuda.__get__)
def is_cuda(mode, function, args, kwargs):
    return on_gpu(args[0])


@handles(Tensor.is_meta.__get__, Tensor.is_cpu.__get__)
def is_elsewhere(mode, function, args, kwargs):
    kind = "meta" if function == Tensor.is_meta.__get__ else "cpu"
    return residence.device_of(args[0]).type == kind


@handles(Tensor.get_device, torch.get_device)
def get_device(mode, function, args, kwargs):
    where = residence.device_of(args[0])
    return 0 if where == CUDA else function(*args) if where == META else -1


@handles(Tensor.data_ptr)
def data_ptr(mode, function, args, kwargs):
    place = residence.of(args[0])
    if place is None or place.block is None:
        return function(*args)
    return place.address + args[0].storage_offset() * args[0].element_size()


@handles(Tensor.type)
def type_name(mode, function, args, kwargs):
    tensor, *rest = args
    wanted = rest[0] if rest else kwargs.get("dtype")
    if wanted is None:
        name = function(tensor)
        where = "torch.cuda." if on_gpu(tensor) else "torch."
        return name.replace("torch.meta.", where) if residence.of(tensor) is not None else name
    if isinstance(wanted, str) and "cuda." in wanted:
        return moved(mode, tensor, CUDA, _dtype_of(wanted.replace("cuda.", "")))
    if isinstance(wanted, torch.dtype) or not on_gpu(tensor):
        return function(*args, **kwargs)
    return moved(mode, tensor, CPU, _dtype_of(str(wanted)))


def _dtype_of(type_text: str) -> torch.dtype:
    return torch.empty(0).type(type_text).dtype


# From one device to the other


def moved(mode, tensor, device, dtype=None, memory_format=None, copy=None, non_blocking=False):
    """`tensor.to(device, dtype)` for any pair of devices."""
    here = residence.device_of(tensor)
    there = here if device is None else CUDA if means_gpu(device) else torch.device(device)
    if here == there or here == there.type:
        options = {"dtype": dtype or tensor.dtype, "copy": bool(copy)}
        if memory_format is not None:
            options["memory_format"] = memory_format
        return tensor.to(**options)
    if there == CUDA:
        return host_copies.to_gpu(mode.dispatch, tensor, dtype, memory_format, non_blocking)
    if there.type == "meta":
        return mode.new_tensors_in("meta", host_copies.same_layout, (tensor, dtype, memory_format), {})
    if there.type == "cpu" and here != META:
        return host_copies.to_host(mode.dispatch, tensor, dtype, memory_format, non_blocking)
    return tensor.to(device, dtype or tensor.dtype)


@handles(Tensor.to)
def to(mode, function, args, kwargs):
    tensor, *rest = args
    kwargs = dict(kwargs)
    copy, memory_format = kwargs.pop("copy", None), kwargs.get("memory_format")
    last = 2 if rest and isinstance(rest[0], (torch.dtype, type, Tensor)) else 3  # where `copy` stands by position
    if len(rest) == last + 1:
        copy = rest.pop()
    device, dtype, non_blocking, _ = parse_to(mode, torch._C._nn._parse_to, rest, kwargs)
    return moved(mode, tensor, device, dtype, memory_format, copy, non_blocking)


@handles(torch._C._nn._parse_to)
def parse_to(mode, function, args, kwargs):
    """The arguments of Module.to, PackedSequence.to and Tensor.to, taken apart (torch/csrc/utils/python_arg_parser.h,
    parse_to_conversion). It makes no tensor, so the device that is named stays what it is. One that is an index is the
    accelerator's, which C++ would look for; one that a tensor gives is where that tensor says it is."""
    given = {**kwargs, **({0: args[0]} if args else {})}
    for key in (0, "device"):
        if type(given.get(key)) is int:
            given[key] = torch.device("cuda", given[key])
    args = (given.pop(0), *args[1:]) if args else ()
    device, *rest = function(*args, **given)
    like = next((one for one in (*args[:1], given.get("tensor")) if isinstance(one, Tensor)), None)
    return (device if like is None else residence.device_of(like), *rest)


@handles(Tensor.cuda)
def cuda(mode, function, args, kwargs):
    tensor, *rest = args
    device = rest[0] if rest else kwargs.get("device")
    means_gpu(CUDA if device is None else device)
    non_blocking = bool(rest[1] if len(rest) > 1 else kwargs.get("non_blocking"))
    return moved(mode, tensor, CUDA, None, kwargs.get("memory_format"), non_blocking=non_blocking)


@handles(Tensor.cpu)
def cpu(mode, function, args, kwargs):
    return moved(mode, args[0], CPU, None, kwargs.get("memory_format"))


@handles(Tensor.data.__set__)
def set_data(mode, function, args, kwargs):
    tensor, value = args
    if tensor.is_meta == value.is_meta:
        return function(*args)
    return host_copies.set_data(tensor, value, lambda grad: moved(mode, grad, residence.device_of(value)))


@handles(torch._has_compatible_shallow_copy_type)
def compatible(mode, function, args, kwargs):
    if any(residence.of(tensor) is not None for tensor in args):
        return True
    return function(*args)


@handles(Tensor.is_pinned)
def is_pinned(mode, function, args, kwargs):
    return residence.is_pinned(args[0].untyped_storage())


# Tensors made from data


@handles(torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, torch.Tensor.new_tensor)
def from_data(mode, function, args, kwargs):
    source = args[1] if function is Tensor.new_tensor else args[0]
    device = kwargs.get("device")
    if device is None and function is Tensor.new_tensor:
        device = residence.device_of(args[0])
    if device is None and isinstance(source, Tensor):
        device = residence.device_of(source)
    if not means_gpu(device):
        return function(*args, **kwargs)
    if isinstance(source, Tensor):
        copy = function is not torch.as_tensor and kwargs.get("copy") is not False
        made = moved(mode, source.detach() if copy else source, CUDA, kwargs.get("dtype"), copy=copy)
        return made.requires_grad_(kwargs.get("requires_grad", False)) if copy else made
    host = function if function is not Tensor.new_tensor else torch.tensor
    options = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    if function is Tensor.new_tensor:
        options.setdefault("dtype", args[0].dtype)
    made = moved(mode, host(source, **{**options, "device": CPU}), CUDA)
    return made.requires_grad_(kwargs.get("requires_grad", False))


@handles(Tensor.__setitem__)
def set_item(mode, function, args, kwargs):
    """A Python number assigned to a slice stays on the host on CUDA (torch/csrc/autograd/python_variable_indexing)."""
    tensor, index, value = args
    if isinstance(value, (int, float, complex)) and on_gpu(tensor):
        value = torch.tensor(value, dtype=tensor.dtype, device=CPU)
    return function(tensor, index, value)


# Autograd


@handles(Tensor.backward)
def backward(mode, function, args, kwargs):
    """Runs with the mode on, so that hooks, checkpoints and custom functions inside see cuda as well."""
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    depth, mode.dispatch.function_depth = mode.dispatch.function_depth, 0
    try:
        with mode:
            torch.autograd.backward(
                args[0],
                given.get("gradient"),
                given.get("retain_graph"),
                given.get("create_graph", False),
                inputs=given.get("inputs"),
            )
    finally:
        mode.dispatch.function_depth = depth
