"""The dispatch mode, which gives every tensor on the simulated GPU its block.

It sees each ATen operator below autograd, in forward and backward. It runs the operator on meta tensors, which computes
shapes and no values. Then it allocates what CUDA would allocate: the outputs, and what the rules in `ops` add.
Finally the operator is added to the clock.
"""

import threading
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from simgpu.allocator.caching import OutOfMemory
from simgpu.autograd import accumulation, formulas
from simgpu.checks import devices, dtypes, missing_cuda_kernels, number_ranges, overlaps
from simgpu.clock.clock import TO_HOST
from simgpu.cpu_reference import execute
from simgpu.device import machine as machines
from simgpu.dispatch import costs, op_log, size_probe, stacks
from simgpu.dispatch.op_traits import COLLECTIVE, HIGHER_ORDER, KERNEL, QUESTION, VIEW, traits_of
from simgpu.distributed import operators
from simgpu.errors import NESTED, OTHER_ENGINE, NotModelledError, NoValueError
from simgpu.interrupts import run_deferring_signals
from simgpu.op_info import composite_explicit
from simgpu.op_info.op_spec import mark, spec
from simgpu.ops import OpCall, autocast, custom, decomposition_of, preprocessing_of, transfer
from simgpu.placeholder_values import zeros_like
from simgpu.shapes import meta_kernels
from simgpu.storage import bounds, storage_map, values
from simgpu.storage.storage_map import HOST, on_gpu

GPU = "gpu"
_no_functions = torch._C.DisableTorchFunction
_tracing, _trace = torch._C._get_tracing_state, torch._C._set_tracing_state  # pyright: ignore[reportAttributeAccessIssue]
_TRACER = torch._C._dispatch_key_parse("Tracer")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_aten = torch.ops.aten
_CONVOLUTION = _aten.convolution.default
_UNIFORM = _aten.uniform_.default  # for fake tensors this is a copy_, which needs a CUDA build
_COPY, _LOCAL_SCALAR, _AS_STRIDED = _aten.copy_.default, _aten._local_scalar_dense.default, _aten.as_strided.default

DATA_DEPENDENT = (
    "{operator} gives a tensor whose size depends on the values of its input, and a simulated tensor has no values. "
    "{remedy}; or use a form with a fixed size (torch.where instead of a mask)."
)

OTHER_LAYOUT = (
    "the simulated GPU does not model tensors of layout {layout}: how much they hold follows from values. Keep tensors "
    "dense; embeddings with sparse=False, and a dense optimizer"
)


# Values of an operator that a Python function decomposes are computed for the operator as a whole, but for these.
mark("masked_select index_put equal", parts_have_values=True)
mark("repeat_interleave.Tensor segment_reduce", parts_read_values=True)


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


def tensors_in(arguments):
    """Yields the tensors among arguments, including those in lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


def results_in(result):
    """Yields an operator's results one by one, with lists flattened and None kept."""
    if isinstance(result, (list, tuple)):
        for one in result:
            yield from results_in(one)
    else:
        yield result


def outputs_of(result) -> tuple:
    """Returns an operator's results as a flat tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(results_in(result))


def is_refusal_of_meta(error: RuntimeError) -> bool:
    """Returns whether PyTorch's C++ failed because it does not expect meta tensors, for example nested ones."""
    return "INTERNAL ASSERT FAILED" in str(error)


def all_meta(arguments) -> bool:
    """Returns whether a call has tensor arguments, and all of them are PyTorch's own meta tensors."""
    found = list(tensors_in(arguments))
    return bool(found) and all(one.is_meta and storage_map.of(one) is None for one in found)


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
    count = 0
    lines: tuple = ()  # lines of placeholder values that decide the size of what the host makes now
    apart = False  # whether the running code replaces a CUDA kernel whose values are computed as a whole
    lengths: tuple[int, int] = (0, 0)  # lengths of the mode stacks at the last check

    def __init__(self):
        self.seen = set()


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
        self.run_kernel = op_log.OpLog(self.run, machine.allocator).run if op_log.requested() else self.run
        self.ran = set()  # traits of the operators that ran on the GPU

    # HOST, GPU or "meta": where operators place new tensors with device meta
    new_tensors_go = _of_thread("new_tensors_go")
    # depth of calls from Python; 0 within backward means that autograd's engine calls
    function_depth = _of_thread("function_depth")
    count = _of_thread("count")  # number of operators that have run
    seen = _of_thread("seen")  # the operators with a formula that have run

    @classmethod
    def _should_skip_dynamo(cls):
        """Returns False, because torch.compile runs eagerly here and need not skip this mode, which costs time per
        call.
        """
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and args[0].__class__ is int and next(tensors_in(args), None) is None:
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
        traits = traits_of(operator)
        kind = traits.kind
        with _no_functions():
            if kind is VIEW:
                first = args[0]
                if first.__class__ is not complex and first.is_meta:  # 1j * x needs the conjugate of 1j
                    self.machine.clock.view()
                    if operator is _AS_STRIDED:
                        bounds.check(*args, **kwargs)
                return operator(*args, **kwargs)
            if kind is KERNEL:
                try:
                    return run_deferring_signals(self.run_kernel, traits, operator, args, kwargs)
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

    def run_decomposed(self, traits, function, args, kwargs):
        """Runs an operator whose kernel (a Python function, or PyTorch's own) calls others, each of which is seen
        here.
        """
        operator = traits.operator
        here, declared = self.here, spec(operator)
        depth, apart = here.function_depth, here.apart
        whole = function is not None and not declared.parts_have_values and not traits.made_in_python
        try:
            here.function_depth = depth + 1
            here.apart = apart or (whole and not declared.parts_read_values)
            with self:
                if function is None:
                    result = operator._op_dk(composite_explicit.kernel_of(operator), *args, **kwargs)
                else:
                    with self.face() if traits.made_in_python else nullcontext():
                        result = function(*args, **kwargs)
            if whole and not apart:
                self.note_values(operator, args, kwargs, outputs_of(result))
            if traits.has_kernel_among_others:
                costs.issue(self.machine, operator, args, kwargs, outputs_of(result))
        except RuntimeError as error:
            if is_refusal_of_meta(error):
                raise self.explained(operator) from None
            raise
        finally:
            here.function_depth, here.apart = depth, apart
        if self.called_by_engine():
            self.count += 1
            if torch.is_grad_enabled():
                self.seen.add(formulas.TWICE)
            self.note_made(operator, results_in(result))
        return result

    @contextmanager
    def face(self):
        """Makes a program's own Python code see the simulated GPU as it does outside operators."""
        on = torch._C._EnableTorchFunction()  # pyright: ignore[reportAttributeAccessIssue]
        functions = self.functions
        with on, nullcontext() if functions is None or functions in stacks.functions() else functions:
            yield

    def run_before(self, prepare, args, kwargs):
        """Returns the arguments that CUDA's code first prepares with operators, which count as part of the next one."""
        count = self.count
        with self:
            made = prepare(*args, **kwargs)
        self.count = count
        return made

    def run(self, traits, operator, args, kwargs):
        """Runs one operator where it belongs: on the simulated GPU, on the host, or on PyTorch's own meta device."""
        if traits.is_forward:
            self.seen.add(operator)
        tensors = list(tensors_in((*args, *kwargs.values())))
        place = self.place_of(traits, tensors, args, kwargs)
        if traits.absent is not None and place == GPU:
            raise missing_cuda_kernels.error(traits.absent)
        if traits.overlaps is not None and place == GPU:
            overlaps.check(traits.overlaps, operator, args, kwargs)
        if traits.refusal is not None and (place == GPU or (not tensors and self.makes_on_gpu(kwargs))):
            traits.refusal(operator, args, kwargs)
        if traits.dtypes is not None and (place == GPU or (not tensors and self.makes_on_gpu(kwargs))):
            dtypes.check(traits.dtypes, operator, args, kwargs, tensors)
        if traits.takes_host_values:
            args = tuple(of_the_host(one, operator) for one in args)
        if traits.may_be_decomposed and (
            place == GPU or (traits.creates_by_decomposition and self.makes_on_gpu(kwargs))
        ):
            others = decomposition_of(operator, args, kwargs)
            if others is not None and not (self.called_by_engine() and self.works_in_place(operator, args)):
                return self.run_decomposed(traits, *others, args, kwargs)
        if traits.may_be_preprocessed and place == GPU:
            prepare = preprocessing_of(operator, args, kwargs)
            if prepare is not None:
                args = self.run_before(prepare, args, kwargs)
                tensors = list(tensors_in((*args, *kwargs.values())))
                place = self.place_of(traits, tensors, args, kwargs)
        device = kwargs.get("device")
        on_meta = device is not None and torch.device(device).type == "meta"  # by name, like all tensors of the GPU
        new_tensors_go = self.here.new_tensors_go
        if (place is None and not on_meta) or (on_meta and new_tensors_go == "meta"):
            return operator(*args, **kwargs)  # runs on the host, or on PyTorch's own meta device
        if new_tensors_go is not None:
            place = self.place_of_new(place, on_meta)
        elif place is None and all_meta(self.here.given):  # C++ creates it in a call on PyTorch's own meta tensors
            return operator(*args, **kwargs)
        if operator is _LOCAL_SCALAR:
            return self.scalar(args[0])
        if operator is _COPY and not args[0].is_meta:
            return self.copy_to_host(traits, args, kwargs, place)
        return self.run_alone(traits, operator, tensors, args, kwargs, place)

    def run_alone(self, traits, operator, tensors, args, kwargs, place):
        """Runs one operator in one place: its shapes, memory, time and values. `tensors` are those among its
        arguments.
        """
        given, named = args, kwargs
        real = [one for one in tensors if not one.is_meta]
        if real and not traits.crosses and (traits.takes_host_scalar or any(one.dim() for one in real)):
            args, kwargs = without_host_values(args, kwargs, traits.takes_host_scalar)
        here = self.here
        here.count += 1
        by_engine = here.function_depth == 0 and torch._C._current_graph_task_id() != -1
        if by_engine:
            kwargs = formulas.as_on_cuda(operator, args, kwargs)
            if torch.is_grad_enabled():
                self.seen.add(formulas.TWICE)
            guess = formulas.guessed(operator, self.seen)
            if guess is not None:
                self.machine.unmodeled.add(guess.name, guess.why, lower_bound=False)
        result = self.shapes(operator, args, kwargs, given, named)
        if by_engine and place is not HOST and self.works_in_place(operator, args):
            result = self.in_place_of(args[0], result)
        outputs = outputs_of(result)
        if place is HOST:
            for output in outputs:
                self.count_on_host(output)
            self.keep_lines(tensors, outputs)
        else:
            self.take_memory(traits, args, kwargs, outputs)
            costs.issue(self.machine, operator, args, kwargs, outputs)
        if traits.converts_number:
            number_ranges.check(operator, given, named, outputs[0])
        if by_engine:
            self.note_made(operator, outputs)
        if not here.apart:
            self.note_values(operator, given, named, outputs)
        return result

    def note_values(self, operator, args, kwargs, outputs) -> None:
        """Updates the known values of results and of written tensors; computes all values if they are requested."""
        if self.machine.host_memory is None:
            values.follow(operator, args, kwargs, outputs)
        else:
            execute.follow(self.machine, operator, args, kwargs, outputs)

    def makes_on_gpu(self, kwargs) -> bool:
        """Returns whether a factory is to create its tensor on the simulated GPU."""
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "meta" and self.new_tensors_go == GPU

    def place_of_new(self, place, on_meta: bool):
        """Returns where new tensors go: as `new_tensors_go` says if it is set, else `place`."""
        if self.new_tensors_go is HOST:
            return HOST
        return GPU if on_meta and self.new_tensors_go == GPU else place

    def copy_to_host(self, traits, args, kwargs, place):
        """Copies into a host tensor that has values."""
        if place is not HOST:
            self.take_memory(traits, args, kwargs, ())
            costs.issue(self.machine, traits.operator, args, kwargs, ())
        transfer.write(*args[:2])
        return args[0]

    def shapes(self, operator, args, kwargs, given, named):
        """Returns the operator's result on meta tensors, which has shapes and no values.

        `given` and `named` are its arguments as the program passed them.
        """
        try:
            return meta_kernels.run(operator, args, kwargs)
        except NotImplementedError:
            return self.of_known_size(operator, given, named)
        except RuntimeError as error:
            if custom.has_fake(operator):
                found = custom.smallest(operator, args, kwargs)
                if found is not None:
                    return self.of_library(operator, found, given, named)
            if is_refusal_of_meta(error):
                raise self.explained(operator) from None
            raise

    def of_known_size(self, operator, args, kwargs):
        """Returns the results of an operator whose sizes depend on values, if those are known; else raises an
        explanation.

        The results have the CPU's layout, except for nonzero's (Nonzero.cu: a row per dim, transposed).
        """
        try:
            if custom.is_of_library(operator):
                found = values.computed(operator, args, kwargs)
                return pytree.tree_map_only(torch.Tensor, meta_kernels.like, found)
            if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags):
                raise values.UnknownError
            found = values.computed(operator, *self.with_placeholders(operator, args, kwargs))
        except (values.UnknownError, NotImplementedError):
            raise self.explained(operator) from None
        if operator is _aten.nonzero.default:
            found = found.t().contiguous().t()
        return pytree.tree_map_only(torch.Tensor, meta_kernels.like, found)

    def of_library(self, operator, smallest, args, kwargs):
        """Returns the results of a library's operator whose fake kernel has sizes that depend on values.

        The library's CPU kernel computes them if the values are known. Otherwise, with placeholder values, they are the
        `smallest` ones that the fake kernel allows.
        """
        try:
            return pytree.tree_map_only(torch.Tensor, meta_kernels.like, values.computed(operator, args, kwargs))
        except NotImplementedError:
            raise self.explained(operator) from None
        except values.UnknownError:
            if self.machine.placeholder_values is None:
                raise NoValueError(DATA_DEPENDENT.format(operator=operator, remedy=machines.remedy())) from None
        self.machine.placeholder_values.note(operator._schema.name).decides_size()
        return smallest

    def with_placeholders(self, operator, args, kwargs):
        """Returns the arguments, with zeros for unknown values if the GPU provides placeholder values."""
        if self.machine.placeholder_values is None or all(
            values.of(tensor) is not None for tensor in tensors_in((*args, *kwargs.values())) if tensor.is_meta
        ):
            return args, kwargs
        line = self.machine.placeholder_values.note(operator._schema.name.removeprefix("aten::"))
        if torch.Tag.data_dependent_output in operator.tags:
            line.branches = True
        elif any(map(on_gpu, tensors_in((*args, *kwargs.values())))):
            line.decides_size()
        else:
            self.here.lines = (line,)

        def known(one):
            return zeros_like(one) if one.is_meta and values.of(one) is None else one

        with _disable_current_modes():
            return pytree.tree_map_only(torch.Tensor, known, (args, kwargs))

    def called_by_engine(self) -> bool:
        """Returns whether autograd's engine calls the operator, directly or in a formula."""
        return self.here.function_depth == 0 and torch._C._current_graph_task_id() != -1

    def works_in_place(self, operator, args) -> bool:
        """Returns whether autograd's engine, without a dispatch mode, would have written this result into the first
        operand.
        """
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None or not formulas.concerns(operator) or accumulation.transformed():
            return False
        does = None
        if accumulation.unshared_storage(first):
            made = getattr(storage_map.find(first.untyped_storage()), "made", None)
            does = formulas.made_by_formula(operator, made, self.count, self.seen)
        return accumulation.accumulates(operator, args) if does is None else does != formulas.ANEW

    def note_made(self, operator, outputs) -> None:
        """Records which operator made these tensors, for `formulas`."""
        made = formulas.Made(operator, self.count)
        for output in outputs:
            place = storage_map.find(output.untyped_storage()) if isinstance(output, torch.Tensor) else None
            if place is not None and place.made is None:
                place.made = made

    def in_place_of(self, first, result):
        """Returns the result in the memory and with the strides of `first`."""
        if result.stride() != first.stride():
            result = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="meta")
        storage = result.untyped_storage()
        home = storage_map.find(first.untyped_storage())
        assert home is not None, "works_in_place needs simulated tensors"
        storage_map.share(storage, home, storage.nbytes())
        return result

    def take_memory(self, traits, args, kwargs, outputs) -> None:
        """Allocates the outputs and the scratch memory of the operator's rule, as CUDA would."""
        operator = self.machine.operator = traits.operator
        if self.machine.before_memory is not None:
            self.machine.before_memory(args)
        if traits not in self.ran:
            self.ran.add(traits)
            self.machine.unmodeled.ran(operator)
        try:
            if traits.rule is None:
                for output in outputs:
                    self.allocate(output)
                return
            call = OpCall(operator, args, kwargs, outputs, self.machine, accumulation.in_its_thread(), self.allocate)
            try:
                traits.rule(call)
                call.allocate_outputs(*outputs)
            finally:
                call.finish()
            return
        except OutOfMemory as error:
            message = str(error)
        raise torch.OutOfMemoryError(message)  # raised outside the handler, so that no context keeps the outputs alive

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

    def keep_lines(self, tensors, outputs) -> None:
        """Keeps the lines of placeholder values that decide sizes on the host.

        On the host such a size uses no GPU memory. But the lines stay with what is computed from it, in case that is
        copied to the GPU.
        """
        homes = [storage_map.find(one.untyped_storage()) for one in tensors if one.is_meta]
        lines = dict.fromkeys(line for home in homes if home is not None for line in home.lines)
        lines, self.here.lines = (*lines, *self.here.lines), ()
        for output in outputs if lines else ():
            home = storage_map.of(output) if isinstance(output, torch.Tensor) else None
            if home is not None and home.home is HOST:
                home.lines = lines

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
                size_probe.look_inside(line, self.functions)
            return number
        raise NoValueError(
            f"PyTorch asks for the value of a simulated {tensor.dtype} tensor inside an operator, and it has none: the "
            f"simulated GPU computes memory, not values. {machines.remedy()}."
        )

    def place_of(self, traits, tensors, args, kwargs):
        """Returns where the operator runs: GPU, HOST, or None (no simulated tensor). Raises CUDA's error for a
        mixture.
        """
        gpu = host = real = None
        for tensor in tensors:
            if not tensor.is_meta:
                if tensor.dim() > 0:
                    real = tensor
                continue
            found = storage_map.find(tensor.untyped_storage())
            if found is None:
                continue
            if found.machine is not self.machine:
                raise self.of_another_gpu(found.machine, traits.operator)
            if found.home is not HOST:
                gpu = tensor
            elif host is None or tensor.dim() > 0:
                host = tensor
        if gpu is None:
            return HOST if host is not None else None
        if traits.wants_one_device and any(not on_gpu(one) for one in tensors):
            raise devices.error(traits.operator, args, kwargs)
        stranger = real if real is not None else host if host is not None and host.dim() > 0 else None
        allowed = traits.crosses or traits.takes_host_values or (traits.takes_host_index and on_gpu(args[0]))
        if stranger is not None and not allowed:
            raise devices.error(traits.operator, args, kwargs)
        return GPU

    def of_another_gpu(self, other: machines.Machine, operator) -> RuntimeError:
        return RuntimeError(
            f"a tensor of the simulated {other.spec.key} was given to {operator} on the simulated "
            f"{self.machine.spec.key}; a tensor is of use only inside the simulated_gpu() that made it"
        )

    def explained(self, operator):
        tags = operator.tags
        if "nested" in operator._opname:
            return NotModelledError(NESTED)
        if "_sparse" in operator._opname:
            return NotModelledError(OTHER_LAYOUT.format(layout=f"sparse ({operator})"))
        if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
            return NoValueError(DATA_DEPENDENT.format(operator=operator, remedy=machines.remedy()))
        message = f"the simulated GPU does not model {operator}: PyTorch has no shapes of its results"
        if custom.is_of_library(operator):
            message += (
                ". Register them (torch.library.register_fake), or use values=True (--values), with which the "
                "operator's kernel for the CPU makes the results, if it has one"
            )
        return NotModelledError(message)


def of_the_host(argument, operator):
    """Returns a host tensor for one that was copied there from the GPU, for an operator that reads its values.

    The values are the known ones, or placeholders. Raises NoValueError if there are neither. Returns any other argument
    unchanged.
    """
    place = storage_map.of(argument) if isinstance(argument, torch.Tensor) else None
    if place is None or place.home is not HOST:
        return argument
    unknown = f"the lengths were copied from the simulated GPU, where they have no values. {machines.remedy()}."
    return values.deciding(argument, operator._opname, unknown, least=1)


def without_host_values(args, kwargs, scalars_too: bool):
    """Returns the arguments with real CPU tensors replaced by meta ones, as meta kernels need (for some: scalars
    too).
    """

    def as_meta(value):
        if isinstance(value, torch.Tensor) and not value.is_meta and (value.dim() > 0 or scalars_too):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, list):
            found = copy(value)  # keeps what a list of indices records about its masks (selection.py)
            found[:] = map(as_meta, value)
            return found
        return tuple(map(as_meta, value)) if isinstance(value, tuple) else value

    return tuple(map(as_meta, args)), {name: as_meta(value) for name, value in kwargs.items()}
