"""The function mode, which lets plain PyTorch code use "cuda".

It sees each call of a PyTorch function from Python. It replaces "cuda" by "meta" in the arguments, and reports cuda:0
for the results. Where PyTorch's C++ would check `is_cuda()`, it takes CUDA's branch.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import _device_constructors

from simgpu.device.machine import current
from simgpu.device.streams import Generator
from simgpu.dispatch import (  # noqa: F401
    assume_finite,
    default_devices,
    indexing,
    moves,
    stacks,
    unknown_sizes,
    value_access,
)
from simgpu.dispatch.default_devices import META, means_gpu
from simgpu.dispatch.dispatch_mode import DispatchMode
from simgpu.dispatch.stages import GPU
from simgpu.errors import NoValueError, in_cuda_words
from simgpu.handlers import handler_of, handles
from simgpu.interrupts import defers_signals, run_deferring_signals
from simgpu.op_info.arguments import tensors_in
from simgpu.ops import attention, cuda_composites, encoder, gradients, meta_shapes, rnn  # noqa: F401  (they register what they hold)
from simgpu.storage import side_streams, storage_map
from simgpu.storage.storage_map import HOST, on_gpu
from simgpu.tracebacks import as_on_gpu, let_go

Tensor = torch.Tensor
_PLAIN = {(), (Tensor,), (torch.nn.Parameter,)}  # tensor types that don't handle calls themselves


class FunctionMode(TorchFunctionMode):
    """The user-facing side of the simulated GPU, above `dispatch`."""

    def __init__(self, dispatch: DispatchMode):
        super().__init__()
        self.dispatch = dispatch
        dispatch.functions = self
        self.default_type_on_gpu: Any = None  # torch.cuda.FloatTensor, if passed to torch.set_default_tensor_type

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in default_devices.OF_ITSELF and types in _PLAIN:
            return function(*args, **(kwargs or {}))
        dispatch = self.dispatch
        if not dispatch.machine.active or dispatch.machine is not current():
            return function(*args, **(kwargs or {}))
        if dispatch.machine.stream and dispatch.here.function_depth == 0 and torch.is_grad_enabled():
            try:
                return self.on_side_stream(function, types, args, kwargs)
            except Exception:
                del args, kwargs  # same reason as below
                raise
        if not stacks.dispatch_is_on():
            stacks.switch_dispatch_on()
        for kind in types:
            if has_function_of_its_own(kind):
                with self:
                    result = kind.__torch_function__(function, types, args, kwargs or {})
                if result is not NotImplemented:
                    return result
        if function in _device_constructors() and (kwargs or {}).get("device") is None:
            default = self.default_device(args)
            kwargs = {**(kwargs or {}), "device": default} if default is not None else kwargs
        handler = handler_of(function)
        here = dispatch.here
        depth, given = here.function_depth, here.given
        if depth == 0:
            self.repair()
        try:
            here.function_depth = depth + 1
            here.given = (args, kwargs and (*kwargs.values(),))
            placeholder_values = dispatch.machine.placeholder_values
            if placeholder_values is not None and placeholder_values.numbers:
                unknown_sizes.look(function, args, kwargs)
            if kwargs and kwargs.get("generator") is not None:
                check_generator(kwargs["generator"], args, kwargs)
            if handler is not None:
                if function is Tensor.backward:  # its hooks are user code
                    return handler(self, function, args, kwargs or {})
                return run_deferring_signals(handler, self, function, args, kwargs or {})
            if kwargs and kwargs.get("pin_memory") and not means_gpu(kwargs.get("device")):
                return self.pinned(function, args, kwargs)
            if kwargs and kwargs.get("device") is not None:
                return self.with_device(function, args, kwargs)
            return function(*args, **kwargs) if kwargs else function(*args)
        except torch.OutOfMemoryError as error:
            del args, kwargs  # the traceback keeps this frame, which must not keep tensors that C++ would release
            if depth == 0:
                let_go(error)  # before the frames of a composite operator are removed from the traceback
            raise error.with_traceback(as_on_gpu(error.__traceback__)) from None
        except Exception as error:
            if isinstance(error, NoValueError) and self.stands_in(function):
                return value_access.with_placeholder(dispatch.machine, function, args, kwargs or {})
            said = in_cuda_words(str(error), str(dispatch.machine.cuda)) if type(error) is RuntimeError else ""
            renamed = said not in ("", str(error)) and any(
                map(storage_map.of, tensors_in((*args, *(kwargs or {}).values())))
            )
            del args, kwargs
            if depth == 0:
                let_go(error)
            if not renamed:
                raise
            raise RuntimeError(said) from None
        finally:
            here.function_depth, here.given = depth, given

    def stands_in(self, function) -> bool:
        """Returns whether an unknown value that a program reads is replaced by a placeholder."""
        return self.dispatch.machine.placeholder_values is not None and function in value_access.STANDING_IN

    def on_side_stream(self, function, types, args, kwargs):
        """Runs a call on a stream other than the default one, where autograd will run its backward too."""
        machine, here = self.dispatch.machine, self.dispatch.here
        stream = machine.stream
        here.function_depth = 1
        try:
            result = self.__torch_function__(function, types, args, kwargs)
        except Exception as error:
            del args, kwargs
            let_go(error)
            raise
        finally:
            here.function_depth = 0
        side_streams.note(stream, tensors_in((*args, *(kwargs or {}).values())), tensors_in((result,)))
        return result

    def repair(self) -> None:
        """Removes what an interrupt may have left on the mode stacks, before an outermost call."""
        here = self.dispatch.here
        lengths = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
        if lengths != here.lengths:
            stacks.keep_once(self, 0)  # it is disabled while it handles a call
            stacks.keep_once(self.dispatch)
            here.lengths = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()

    def default_device(self, args):
        """Returns where a factory without a `device` places its result.

        It is the `torch.device` around it (whose mode is below this one), or the default tensor type's device, which
        does not apply to data from an array or a tensor.
        """
        if _device.CURRENT_DEVICE is not None or self.default_type_on_gpu is None:
            return _device.CURRENT_DEVICE
        return None if args and isinstance(args[0], Tensor) else self.dispatch.machine.cuda

    @defers_signals
    def with_device(self, function, args, kwargs):
        """Runs a call that names a device: cuda becomes meta, and PyTorch's own meta stays as it is."""
        device = kwargs["device"]
        if means_gpu(device):
            kwargs = {**kwargs, "device": META}
            if isinstance(kwargs.get("generator"), Generator):
                return self.drawn_from(kwargs["generator"], function, args, {**kwargs, "generator": None})
            try:
                return self.new_tensors_in(GPU, function, args, kwargs)
            except RuntimeError as error:
                said = str(error).replace("device=meta", f"device={device}")
                if type(error) is not RuntimeError or said == str(error):
                    raise
                raise RuntimeError(said) from None
        if torch.device(device).type == "meta":
            return self.new_tensors_in("meta", function, args, kwargs)
        return function(*args, **kwargs)

    def drawn_from(self, generator, function, args, kwargs):
        """Runs a call that draws random numbers from a GPU generator, which meta tensors do not support."""
        machine = self.dispatch.machine
        machine.named_generator = generator
        try:
            return self.new_tensors_in(GPU, function, args, kwargs)
        finally:
            machine.named_generator = None

    @defers_signals
    def pinned(self, function, args, kwargs):
        """Runs a call for pinned host memory.

        A tensor of torch.empty waits for a copy from the GPU, as in save_on_cpu. So it is counted and has no values,
        unless all tensors have. Other tensors have values, in memory that is not pinned.
        """
        self.dispatch.machine.allocator.read_settings()  # the allocator of pinned memory reads them
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if function is torch.empty and self.dispatch.machine.host_memory is None:
            made = self.new_tensors_in(HOST, function, args, {**kwargs, "device": META})
        else:
            made = function(*args, **kwargs)
        storage_map.pin(made.untyped_storage())
        return made

    def new_tensors_in(self, place, function, args, kwargs):
        """Runs a call whose new tensors go to HOST, to the GPU, or to PyTorch's own "meta"."""
        outer, self.dispatch.new_tensors_go = self.dispatch.new_tensors_go, place
        try:
            return function(*args, **kwargs)
        finally:
            self.dispatch.new_tensors_go = outer


def has_function_of_its_own(kind: type) -> bool:
    """Returns whether a subclass of Tensor handles calls itself, if only to return its own type.

    Its `__torch_function__` comes first, and what it calls is seen again. Inside it, PyTorch disables subclasses.
    """
    given = kind.__torch_function__
    overrides = kind is not Tensor and given is not torch._C._disabled_torch_function_impl
    return overrides and torch._C._is_torch_function_enabled()


def check_generator(generator, args, kwargs) -> None:
    """Raises RuntimeError, as PyTorch does, if a generator is not on the call's device.

    That device is the one that the call names, or its tensors' (aten/src/ATen/core/Generator.h).
    """
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


# Autograd


@handles(Tensor.backward)
def backward(mode, function, args, kwargs):
    """Runs backward with the mode on, so that hooks, checkpoints and custom functions inside see cuda as well."""
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
