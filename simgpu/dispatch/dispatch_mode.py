"""The dispatch mode, which gives every tensor on the simulated GPU its block.

It sees each ATen operator below autograd, in forward and backward, and decides what kind it is: a view, a kernel, a
collective, or none of the simulated GPU's. A kernel runs in the stages of `stages.py`.
"""

import threading
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.allocator.caching import OutOfMemory
from simgpu.clock.clock import TO_HOST
from simgpu.device import machine as machines
from simgpu.dispatch import costs, op_log, stacks, stages, unknown_sizes
from simgpu.dispatch.op_traits import COLLECTIVE, HIGHER_ORDER, KERNEL, QUESTION, VIEW
from simgpu.dispatch.unknown_sizes import OTHER_LAYOUT
from simgpu.distributed import operators
from simgpu.errors import OTHER_ENGINE, NotModelledError, NoValueError
from simgpu.interrupts import run_deferring_signals
from simgpu.op_info.arguments import tensors_in
from simgpu.ops import autocast, transfer
from simgpu.placeholder_values import zeros_like
from simgpu.storage import layout, storage_map, values
from simgpu.storage.storage_map import on_gpu

_no_functions = torch._C.DisableTorchFunction
_tracing, _trace = torch._C._get_tracing_state, torch._C._set_tracing_state  # pyright: ignore[reportAttributeAccessIssue]
_TRACER = torch._C._dispatch_key_parse("Tracer")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_aten = torch.ops.aten
_CONVOLUTION = _aten.convolution.default
_UNIFORM = _aten.uniform_.default  # for fake tensors this is a copy_, which needs a CUDA build
_AS_STRIDED = _aten.as_strided.default


def refuse_simulated(operator, arguments) -> None:
    """Raises NotModelledError if an argument of a collective is a simulated tensor, because there is only one GPU."""
    if any(storage_map.of(tensor) is not None for tensor in tensors_in(arguments)):
        raise NotModelledError(
            f"{operator} of simulated tensors is not modelled: the simulated GPU is one GPU, without others to talk "
            "to. Run one rank without torch.distributed, or give it CPU tensors."
        )


# Higher-order operators that run CUDA's function: DTensor's random numbers.
ON_CUDA = {"run_dtensor_rng_op"}


@cache
def makes_others(kind: type) -> bool:
    """Returns whether a type of tensors implements operators itself in terms of others."""
    return getattr(kind, "__torch_dispatch__", None) != torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]


@cache
def is_fake(kind: type) -> bool:
    """Returns whether the type is FakeTensor's, which represents shapes only."""
    return issubclass(kind, FakeTensor)


@contextmanager
def not_traced():
    """Hides the parts of an operator from torch.jit.trace, which has already recorded the operator."""
    key, state = _TRACER, _tracing()
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    _trace(None)
    try:
        yield
    finally:
        _trace(state)
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)


def sizes_as_tensors(operator, args) -> tuple:
    """Converts sizes that came as numbers back to tensors.

    In a traced program a size is a tensor without dims, but it arrives here as a number.
    """
    kinds = [str(argument.type) for argument in operator._schema.arguments]
    return tuple(
        torch.tensor(given) if type(given) in (bool, int, float) and kind == "Tensor" else given
        for given, kind in zip(args, kinds, strict=False)
    )


class _OfThread(threading.local):
    """The per-thread state of a mode."""

    given: tuple = ()  # the arguments of the current call from Python
    new_tensors_go = None
    function_depth = 0
    count = 0  # number of operators that have run
    lines: tuple = ()  # lines of placeholder values that decide the size of what the host makes now
    apart = False  # whether the running code replaces a CUDA kernel whose values are computed as a whole
    lengths: tuple[int, int] = (0, 0)  # lengths of the mode stacks at the last check

    def __init__(self):
        self.seen = set()  # the operators with a formula that have run


def _of_thread(name: str) -> property:
    return property(lambda mode: getattr(mode.here, name), lambda mode, value: setattr(mode.here, name, value))


class DispatchMode(TorchDispatchMode):
    """Runs ATen operators on the simulated GPU `machine`."""

    supports_higher_order_operators = True  # so that they can be refused by name

    def __init__(self, machine: machines.Machine):
        super().__init__()
        self.machine = machine
        self.here = _OfThread()
        self.functions: TorchFunctionMode | None = None  # the function mode above this one
        self.run_kernel = op_log.OpLog(machine.allocator).run if op_log.requested() else stages.run
        self.ran = set()  # traits of the operators that ran on the GPU

    # HOST, GPU or "meta": where operators place new tensors with device meta
    new_tensors_go = _of_thread("new_tensors_go")
    # depth of calls from Python; 0 within backward means that autograd's engine calls
    function_depth = _of_thread("function_depth")

    @classmethod
    def _should_skip_dynamo(cls):
        """Returns False, because torch.compile runs eagerly here and need not skip this mode, which costs time per
        call.
        """
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and args[0].__class__ is int and not tensors_in(args):
            args = sizes_as_tensors(operator, args)
        if _tracing() is not None:
            if operator is _CONVOLUTION:  # the tracer records the _convolution that it calls (gen_trace_type.py)
                torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
                with _no_functions(), self:
                    return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            with not_traced():
                return self.__torch_dispatch__(operator, types, args, kwargs)
        if not self.machine.active or machines.current() is not self.machine:
            return operator(*args, **kwargs)
        if types and any(map(makes_others, types)):
            if any(map(is_fake, types)):  # DTensor computes shapes, which need no memory
                return args[0] if operator is _UNIFORM else operator(*args, **kwargs)
            return NotImplemented  # a subclass (a nested tensor) decomposes it into operators on its inner tensors
        if not types and torch._C._get_dispatch_mode(_FAKE) is not None:
            return operator(*args, **kwargs)
        traits = stages.traits_of(operator)
        kind = traits.kind
        with _no_functions():
            if kind is VIEW:
                first = args[0]
                if first.__class__ is not complex and first.is_meta:  # 1j * x needs the conjugate of 1j
                    self.machine.clock.view()
                    if operator is _AS_STRIDED:
                        layout.check_bounds(*args, **kwargs)
                return operator(*args, **kwargs)
            if kind is KERNEL:
                try:
                    return run_deferring_signals(self.run_kernel, self, traits, operator, args, kwargs)
                except torch.OutOfMemoryError as error:
                    del args, kwargs  # the traceback keeps this frame, which must not keep tensors that C++ releases
                    raise error.with_traceback(None) from None
            if kind is QUESTION:
                return operator(*args, **kwargs)
            if kind is HIGHER_ORDER:
                if operator.name() in ON_CUDA:
                    with self.face(), self:
                        return operator.py_kernels[torch._C.DispatchKey.CUDA](*args, **kwargs)
                raise NotModelledError(f"the simulated GPU does not model {operator}. {OTHER_ENGINE}")
            if kind is COLLECTIVE:
                return self.collective(operator, args, kwargs)
            if any(one.is_nested for one in tensors_in(args)):  # of strided layout, which simulated tensors never have
                return operator(*args, **kwargs)
            with self:
                return autocast.composite(operator, args, kwargs)

    def collective(self, operator, args, kwargs):
        """Runs an operator of torch.distributed, which calls its group; tensors made for that are seen here."""
        given = (*args, *kwargs.values())
        if operator.namespace == "c10d":
            group = operators.group_of(given)
            if not operators.is_rank(group):
                refuse_simulated(operator, given)
                return operator(*args, **kwargs)
            with self:
                return operators.run(group, operator, args, kwargs)
        if not any(storage_map.of(tensor) is not None for tensor in tensors_in(given)):
            return operator(*args, **kwargs)
        with self:
            return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)

    @contextmanager
    def face(self):
        """Makes a program's own Python code see the simulated GPU as it does outside operators."""
        on = torch._C._EnableTorchFunction()  # pyright: ignore[reportAttributeAccessIssue]
        functions = self.functions
        with on, nullcontext() if functions is None or functions in stacks.functions() else functions:
            yield

    def allocate(self, output) -> None:
        """Allocates an output's block, unless it has one (a view, or an argument written in place)."""
        if not isinstance(output, torch.Tensor) or not output.is_meta:
            return
        if output.layout is not torch.strided:
            raise NotModelledError(OTHER_LAYOUT.format(layout=output.layout))
        storage = output.untyped_storage()
        nbytes = storage.nbytes()
        known = storage_map.find(storage)
        if known is None:
            block = self.machine.allocator.malloc(nbytes, self.machine.stream)
            storage_map.bind_storage(storage, self.machine, block, nbytes)
            if block is None:
                self.machine.initialize()
        elif known.nbytes < nbytes:
            storage_map.resize(known, nbytes)

    def count_on_host(self, output) -> None:
        if isinstance(output, torch.Tensor) and output.is_meta:
            storage = output.untyped_storage()
            if storage_map.find(storage) is None:
                storage_map.bind_host_storage(storage, self.machine, storage.nbytes())

    def adopt(self, tensor) -> None:
        """Allocates a block for a tensor that PyTorch made without calling the dispatcher (torch.tensor)."""
        self.machine.operator = None
        try:
            with _no_functions():
                return run_deferring_signals(self.allocate, tensor)
        except OutOfMemory as error:
            message = str(error)
        raise torch.OutOfMemoryError(message)

    def cross(self, destination, source, to_gpu: bool, non_blocking: bool) -> None:
        """Allocates the temporaries of a copy between host and GPU, and adds the copy to the clock."""
        try:
            transfer.crossed(self.machine, destination, source, to_gpu, non_blocking)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None
        costs.cross(self.machine, destination, source, non_blocking)
        home = storage_map.of(source) if to_gpu else None
        for line in () if home is None else home.lines:
            line.decides_size()

    def read_value(self, tensor) -> None:
        """Models the host's read of a tensor's value: a copy of an element, for which it waits."""
        if on_gpu(tensor):
            self.machine.waits()
            clock = self.machine.clock
            clock.copy(self.machine.stream, tensor.element_size(), TO_HOST, pinned=True, blocking=True)

    def scalar(self, tensor):
        """Returns a value that PyTorch's C++ reads: the known one, or nan for a float; else raises NoValueError."""
        self.read_value(tensor)
        known = values.of(tensor)
        if known is not None:
            return known.item()
        if self.function_depth == 0 and tensor.dtype == torch.bool and torch.is_anomaly_check_nan_enabled():
            return False  # the engine checks whether a gradient is NaN (accumulation.cpp); see `finite`
        if tensor.dtype.is_floating_point:
            return values.nan()
        if self.machine.placeholder_values is not None:
            line, number = self.machine.placeholder_values.note("item()"), zeros_like(tensor).item()
            if tensor.dtype == torch.bool:
                line.branches = True
            else:
                unknown_sizes.look_inside(line, self.functions)
            return number
        raise NoValueError(
            f"PyTorch asks for the value of a simulated {tensor.dtype} tensor inside an operator, and it has none: the "
            f"simulated GPU computes memory, not values. {machines.remedy()}."
        )
