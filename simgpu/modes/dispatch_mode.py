"""Gives every tensor on the simulated GPU its block: the dispatch mode.

It sees each ATen operator below autograd, forward and backward. It runs the operator on meta tensors, which computes
shapes and no values, and then takes from the allocator what CUDA would have taken: the outputs, and what the rules of
`kernels` know beside them. Then the operator is put on the clock.
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

from simgpu import machine as machines
from simgpu.composites import autocast
from simgpu.errors import NESTED, OTHER_ENGINE, NotModelledError, NoValueError
from simgpu.interrupts import uninterrupted
from simgpu.kernels import Launch, any_device, custom, dtype_checks, others_of, preparation_of, transfer
from simgpu.memory.allocator import OutOfMemory
from simgpu.modes import costs, size_probe, stacks
from simgpu.modes.operators import COLLECTIVE, HIGHER_ORDER, KERNEL, QUESTION, VIEW, facts_of
from simgpu.on_cpu import follow as on_cpu
from simgpu.ranks import operators
from simgpu.stand_ins import zeros_like
from simgpu.tensors import (
    absent,
    bounds,
    engine,
    formulas,
    meta_kernels,
    overlaps,
    residence,
    scalars,
    values,
    wrong_device,
)
from simgpu.tensors.residence import HOST, on_gpu
from simgpu.timing.clock import TO_HOST

GPU = "gpu"
_no_functions = torch._C.DisableTorchFunction
_tracing, _trace = torch._C._get_tracing_state, torch._C._set_tracing_state  # pyright: ignore[reportAttributeAccessIssue]
_TRACER = torch._C._dispatch_key_parse("Tracer")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_aten = torch.ops.aten
_CONVOLUTION = _aten.convolution.default
_UNIFORM = _aten.uniform_.default  # of fake tensors it is a copy_, which needs a build with CUDA
_COPY, _LOCAL_SCALAR, _AS_STRIDED = _aten.copy_.default, _aten._local_scalar_dense.default, _aten.as_strided.default

DATA_DEPENDENT = (
    "{operator} gives a tensor whose size depends on the values of its input, and a simulated tensor has no values. "
    "{remedy}; or use a form with a fixed size (torch.where instead of a mask)."
)

OTHER_LAYOUT = (
    "the simulated GPU does not model tensors of layout {layout}: how much they hold follows from values. Keep tensors "
    "dense; embeddings with sparse=False, and a dense optimizer"
)


# Made of others by functions in Python (the values are computed for the whole operator, not for each of the others):
# those whose operators give the right values, one by one, and those that ask for values on their way.
AS_THEY_ARE = {_aten.masked_select.default, _aten.index_put.default, _aten.equal.default}
ASKING = {_aten.repeat_interleave.Tensor, _aten.segment_reduce.default}


def refuse_simulated(operator, arguments) -> None:
    """NotModelledError if an argument of a collective is a simulated tensor: there is one GPU."""
    if any(residence.of(tensor) is not None for tensor in tensors_in(arguments)):
        raise NotModelledError(
            f"{operator} of simulated tensors is not modelled: the simulated GPU is one GPU, without others to talk "
            "to. Run one rank without torch.distributed, or give it CPU tensors."
        )


# Higher-order operators that run as their function for CUDA does: DTensor's random numbers.
ON_CUDA = {"run_dtensor_rng_op"}


@cache
def makes_others(kind: type) -> bool:
    """Whether a type of tensors says itself what an operator on them is made of."""
    return getattr(kind, "__torch_dispatch__", None) != torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]


@cache
def is_fake(kind: type) -> bool:
    """Whether it is the type of tensors that stand for shapes alone."""
    return issubclass(kind, FakeTensor)


def tensors_in(arguments):
    """The tensors among arguments, lists of tensors included."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


def results_in(result):
    """What an operator returns, one by one: the lists in it taken apart, and what is None kept."""
    if isinstance(result, (list, tuple)):
        for one in result:
            yield from results_in(one)
    else:
        yield result


def outputs_of(result) -> tuple:
    """The same as a tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(results_in(result))


def is_refusal_of_meta(error: RuntimeError) -> bool:
    """Whether PyTorch's C++ failed because it does not expect meta tensors there: nested tensors, for one."""
    return "INTERNAL ASSERT FAILED" in str(error)


def all_meta(arguments) -> bool:
    """Whether the tensors among a call's arguments are PyTorch's own meta tensors, and there are any."""
    found = list(tensors_in(arguments))
    return bool(found) and all(one.is_meta and residence.of(one) is None for one in found)


@contextmanager
def not_traced():
    """Inside an operator that torch.jit.trace has noted: what it is made of here is not noted."""
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
    """The arguments of an operator in a traced program, where a size is a tensor without dims: it comes here as a
    number."""
    kinds = [str(argument.type) for argument in operator._schema.arguments]
    return tuple(
        torch.tensor(given) if type(given) in (bool, int, float) and kind == "Tensor" else given
        for given, kind in zip(args, kinds, strict=False)
    )


class _OfThread(threading.local):
    """The state of a mode that is one for each thread."""

    given: tuple = ()  # the arguments of the call by Python that is under way
    new_tensors_go = None
    function_depth = 0
    count = 0
    lines: tuple = ()  # of stand-ins that decide the size of what the host makes now
    apart = False  # whether what runs stands for a kernel of CUDA's whose values are computed whole
    lengths: tuple[int, int] = (0, 0)  # of the stacks of modes, when they were last looked at

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
        self.functions: TorchFunctionMode | None = None  # the function mode in front of this one
        self.ran = set()  # facts of the operators that ran on the GPU

    # HOST, GPU or "meta": where operators put new tensors that name the device meta
    new_tensors_go = _of_thread("new_tensors_go")
    # calls by Python under way; 0 within backward means autograd's engine calls
    function_depth = _of_thread("function_depth")
    count = _of_thread("count")  # of operators that have run
    seen = _of_thread("seen")  # those of formulas.FORWARD that have

    @classmethod
    def _should_skip_dynamo(cls):
        """torch.compile runs eagerly here, so PyTorch need not keep it from this mode, which takes time at each call"""
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if args and args[0].__class__ is int and next(tensors_in(args), None) is None:
            args = sizes_as_tensors(operator, args)
        if _tracing() is not None:
            if operator is _CONVOLUTION:  # the tracer notes the _convolution that it calls (gen_trace_type.py)
                torch._C._dispatch_tls_set_dispatch_key_excluded(_TRACER, False)
                with _no_functions(), self:
                    return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            with not_traced():
                return self.__torch_dispatch__(operator, types, args, kwargs)
        if not self.machine.active or machines.current() is not self.machine:
            return operator(*args, **kwargs)
        if types and any(map(makes_others, types)):
            if any(map(is_fake, types)):  # DTensor asks for shapes, which take no memory
                return args[0] if operator is _UNIFORM else operator(*args, **kwargs)
            return NotImplemented  # a subclass makes others of it (a nested tensor), of the tensors that it is made of
        if not types and torch._C._get_dispatch_mode(_FAKE) is not None:
            return operator(*args, **kwargs)
        facts = facts_of(operator)
        kind = facts.kind
        with _no_functions():
            if kind is VIEW:
                first = args[0]
                if first.__class__ is not complex and first.is_meta:  # 1j * x asks for the conjugate of 1j
                    self.machine.clock.view()
                    if operator is _AS_STRIDED:
                        bounds.check(*args, **kwargs)
                return operator(*args, **kwargs)
            if kind is KERNEL:
                try:
                    return uninterrupted(self.run, facts, operator, args, kwargs)
                except torch.OutOfMemoryError as error:
                    del args, kwargs  # the traceback keeps this frame, which must not keep tensors that C++ lets go
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
            if any(one.is_nested for one in tensors_in(args)):  # of strided layout, which no simulated tensor has
                return operator(*args, **kwargs)
            with self:
                return autocast.composite(operator, args, kwargs)

    def collective(self, operator, args, kwargs):
        """An operator of torch.distributed's, which calls its group: what it makes for that is seen here."""
        given = (*args, *kwargs.values())
        if operator.namespace == "c10d":
            group = operators.group_of(given)
            if not operators.is_rank(group):
                refuse_simulated(operator, given)
                return operator(*args, **kwargs)
            with self:
                return operators.run(group, operator, args, kwargs)
        if not any(residence.of(tensor) is not None for tensor in tensors_in(given)):
            return operator(*args, **kwargs)
        with self:
            return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)

    def run_others(self, facts, function, args, kwargs):
        """An operator whose kernel (a Python function, or PyTorch's own) calls others, each of which is seen here."""
        operator = facts.operator
        here = self.here
        depth, apart = here.function_depth, here.apart
        whole = function is not None and operator not in AS_THEY_ARE and not facts.made_in_python
        try:
            here.function_depth = depth + 1
            here.apart = apart or (whole and operator not in ASKING)
            with self:
                if function is None:
                    result = operator._op_dk(any_device.kernel_of(operator), *args, **kwargs)
                else:
                    with self.face() if facts.made_in_python else nullcontext():
                        result = function(*args, **kwargs)
            if whole and not apart:
                self.note_values(operator, args, kwargs, outputs_of(result))
            if facts.has_kernel_among_others:
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
        """Python that is a program's own sees the simulated GPU as it does outside operators."""
        on = torch._C._EnableTorchFunction()  # pyright: ignore[reportAttributeAccessIssue]
        functions = self.functions
        with on, nullcontext() if functions is None or functions in stacks.functions() else functions:
            yield

    def run_before(self, prepare, args, kwargs):
        """The arguments that CUDA's code makes by operators of its own, which count as part of the one to come."""
        count = self.count
        with self:
            made = prepare(*args, **kwargs)
        self.count = count
        return made

    def run(self, facts, operator, args, kwargs):
        """One operator where it belongs: on the simulated GPU, on the host, or on PyTorch's own meta device."""
        if facts.is_forward:
            self.seen.add(operator)
        tensors = list(tensors_in((*args, *kwargs.values())))
        place = self.place_of(facts, tensors, args, kwargs)
        if facts.absent is not None and place == GPU:
            raise absent.error(facts.absent)
        if facts.overlaps is not None and place == GPU:
            overlaps.check(facts.overlaps, operator, args, kwargs)
        if facts.refusal is not None and (place == GPU or (not tensors and self.makes_on_gpu(kwargs))):
            facts.refusal(operator, args, kwargs)
        if facts.dtypes is not None and (place == GPU or (not tensors and self.makes_on_gpu(kwargs))):
            dtype_checks.check(facts.dtypes, operator, args, kwargs, tensors)
        if facts.takes_host_values:
            args = tuple(of_the_host(one, operator) for one in args)
        if facts.may_be_others and (place == GPU or (facts.makes_by_others and self.makes_on_gpu(kwargs))):
            others = others_of(operator, args, kwargs)
            if others is not None and not (self.called_by_engine() and self.works_in_place(operator, args)):
                return self.run_others(facts, *others, args, kwargs)
        if facts.may_be_prepared and place == GPU:
            prepare = preparation_of(operator, args, kwargs)
            if prepare is not None:
                args = self.run_before(prepare, args, kwargs)
                tensors = list(tensors_in((*args, *kwargs.values())))
                place = self.place_of(facts, tensors, args, kwargs)
        device = kwargs.get("device")
        on_meta = device is not None and torch.device(device).type == "meta"  # by name, and so all GPUs' tensors
        new_tensors_go = self.here.new_tensors_go
        if (place is None and not on_meta) or (on_meta and new_tensors_go == "meta"):
            return operator(*args, **kwargs)  # on the host, or on PyTorch's own meta device
        if new_tensors_go is not None:
            place = self.place_of_new(place, on_meta)
        elif place is None and all_meta(self.here.given):  # C++ makes it for a call on PyTorch's own meta tensors
            return operator(*args, **kwargs)
        if operator is _LOCAL_SCALAR:
            return self.scalar(args[0])
        if operator is _COPY and not args[0].is_meta:
            return self.copy_to_host(facts, args, kwargs, place)
        return self.run_alone(facts, operator, tensors, args, kwargs, place)

    def run_alone(self, facts, operator, tensors, args, kwargs, place):
        """One operator, `tensors` among its arguments, in one place: its shapes, memory, time and values."""
        given, named = args, kwargs
        real = [one for one in tensors if not one.is_meta]
        if real and not facts.crosses and (facts.takes_host_scalar or any(one.dim() for one in real)):
            args, kwargs = without_host_values(args, kwargs, facts.takes_host_scalar)
        here = self.here
        here.count += 1
        by_engine = here.function_depth == 0 and torch._C._current_graph_task_id() != -1
        if by_engine:
            kwargs = formulas.as_on_cuda(operator, args, kwargs)
            if torch.is_grad_enabled():
                self.seen.add(formulas.TWICE)
            guess = formulas.guessed(operator, self.seen)
            if guess is not None:
                self.machine.left_out.add(guess.name, guess.why, lower_bound=False)
        result = self.shapes(operator, args, kwargs, given, named)
        if by_engine and place is not HOST and self.works_in_place(operator, args):
            result = self.in_place_of(args[0], result)
        outputs = outputs_of(result)
        if place is HOST:
            for output in outputs:
                self.count_on_host(output)
            self.keep_lines(tensors, outputs)
        else:
            self.take_memory(facts, args, kwargs, outputs)
            costs.issue(self.machine, operator, args, kwargs, outputs)
        if facts.converts_number:
            scalars.check(operator, given, named, outputs[0])
        if by_engine:
            self.note_made(operator, outputs)
        if not here.apart:
            self.note_values(operator, given, named, outputs)
        return result

    def note_values(self, operator, args, kwargs, outputs) -> None:
        """What is known of the values of results, and of what was written: of all, if they are asked for."""
        if self.machine.host_memory is None:
            values.follow(operator, args, kwargs, outputs)
        else:
            on_cpu.follow(self.machine, operator, args, kwargs, outputs)

    def makes_on_gpu(self, kwargs) -> bool:
        """Whether a factory is told to make its tensor on the simulated GPU."""
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == "meta" and self.new_tensors_go == GPU

    def place_of_new(self, place, on_meta: bool):
        """Where new tensors go, if `new_tensors_go` says so; else where they would go."""
        if self.new_tensors_go is HOST:
            return HOST
        return GPU if on_meta and self.new_tensors_go == GPU else place

    def copy_to_host(self, facts, args, kwargs, place):
        """A copy into a tensor of the host that has values."""
        if place is not HOST:
            self.take_memory(facts, args, kwargs, ())
            costs.issue(self.machine, facts.operator, args, kwargs, ())
        transfer.write(*args[:2])
        return args[0]

    def shapes(self, operator, args, kwargs, given, named):
        """The operator's result on meta tensors: it has shapes and no values. `given`, `named`: its arguments as the
        program gave them."""
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
        """The results of an operator whose sizes depend on values, if those are known. Raises what explains it if not.

        They lie as on the CPU, but for nonzero's (Nonzero.cu: a row for each dim, transposed).
        """
        try:
            if custom.is_of_library(operator):
                found = values.computed(operator, args, kwargs)
                return pytree.tree_map_only(torch.Tensor, meta_kernels.like, found)
            if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags):
                raise values.UnknownError
            found = values.computed(operator, *self.standing_in(operator, args, kwargs))
        except (values.UnknownError, NotImplementedError):
            raise self.explained(operator) from None
        if operator is _aten.nonzero.default:
            found = found.t().contiguous().t()
        return pytree.tree_map_only(torch.Tensor, meta_kernels.like, found)

    def of_library(self, operator, smallest, args, kwargs):
        """The results of a library's operator whose fake kernel says that sizes depend on values: as its kernel for
        the CPU makes them of known values; else, with stand-ins, the `smallest` ones that the fake kernel allows."""
        try:
            return pytree.tree_map_only(torch.Tensor, meta_kernels.like, values.computed(operator, args, kwargs))
        except NotImplementedError:
            raise self.explained(operator) from None
        except values.UnknownError:
            if self.machine.stand_ins is None:
                raise NoValueError(DATA_DEPENDENT.format(operator=operator, remedy=machines.remedy())) from None
        self.machine.stand_ins.note(operator._schema.name).decides_size()
        return smallest

    def standing_in(self, operator, args, kwargs):
        """The arguments, with zeros for the values that are not known where the GPU has stand-ins."""
        if self.machine.stand_ins is None or all(
            values.of(tensor) is not None for tensor in tensors_in((*args, *kwargs.values())) if tensor.is_meta
        ):
            return args, kwargs
        line = self.machine.stand_ins.note(operator._schema.name.removeprefix("aten::"))
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
        """Whether autograd's engine calls the operator: itself, or in a formula."""
        return self.here.function_depth == 0 and torch._C._current_graph_task_id() != -1

    def works_in_place(self, operator, args) -> bool:
        """Whether autograd's engine, under no dispatch mode, would have had this result in the first operand."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None or not formulas.concerns(operator) or engine.transformed():
            return False
        does = None
        if engine.unshared_storage(first):
            made = getattr(residence.find(first.untyped_storage()), "made", None)
            does = formulas.made_by_formula(operator, made, self.count, self.seen)
        return engine.accumulates(operator, args) if does is None else does != formulas.ANEW

    def note_made(self, operator, outputs) -> None:
        """Keeps what made these tensors, for `formulas`."""
        made = formulas.Made(operator, self.count)
        for output in outputs:
            place = residence.find(output.untyped_storage()) if isinstance(output, torch.Tensor) else None
            if place is not None and place.made is None:
                place.made = made

    def in_place_of(self, first, result):
        """The result, with the strides of the tensor in whose memory it lies."""
        if result.stride() != first.stride():
            result = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="meta")
        storage = result.untyped_storage()
        home = residence.find(first.untyped_storage())
        assert home is not None, "works_in_place is asked of simulated tensors"
        residence.share(storage, home, storage.nbytes())
        return result

    def take_memory(self, facts, args, kwargs, outputs) -> None:
        """Takes the blocks of the outputs and the scratch of the operator's rule, as CUDA would."""
        operator = self.machine.operator = facts.operator
        if self.machine.before_memory is not None:
            self.machine.before_memory(args)
        if facts not in self.ran:
            self.ran.add(facts)
            self.machine.left_out.ran(operator)
        try:
            if facts.rule is None:
                for output in outputs:
                    self.allocate(output)
                return
            launch = Launch(operator, args, kwargs, outputs, self.machine, engine.in_its_thread(), self.allocate)
            try:
                facts.rule(launch)
                launch.give(*outputs)
            finally:
                launch.finish()
            return
        except OutOfMemory as error:
            message = str(error)
        raise torch.OutOfMemoryError(message)  # outside the handler: no context may keep the outputs alive

    def allocate(self, output) -> None:
        """Gives an output its block, unless it has one (a view, or an argument written in place)."""
        if not isinstance(output, torch.Tensor) or not output.is_meta:
            return
        if output.layout is not torch.strided:
            raise NotModelledError(OTHER_LAYOUT.format(layout=output.layout))
        storage = output.untyped_storage()
        nbytes = storage.nbytes()
        known = residence.find(storage)
        if known is None:
            block = self.machine.allocator.malloc(nbytes, self.machine.stream)
            residence.settle(storage, self.machine, block, nbytes)
            if block is None:
                self.machine.initialize()
        elif known.nbytes < nbytes:
            residence.resize(known, nbytes)

    def count_on_host(self, output) -> None:
        if isinstance(output, torch.Tensor) and output.is_meta:
            storage = output.untyped_storage()
            if residence.find(storage) is None:
                residence.settle_on_host(storage, self.machine, storage.nbytes())

    def keep_lines(self, tensors, outputs) -> None:
        """On the host a size that depends on a stand-in takes no memory of the GPU; but its line is kept with what is
        made of it, in case that is copied to the GPU."""
        homes = [residence.find(one.untyped_storage()) for one in tensors if one.is_meta]
        lines = dict.fromkeys(line for home in homes if home is not None for line in home.lines)
        lines, self.here.lines = (*lines, *self.here.lines), ()
        for output in outputs if lines else ():
            home = residence.of(output) if isinstance(output, torch.Tensor) else None
            if home is not None and home.home is HOST:
                home.lines = lines

    def adopt(self, tensor) -> None:
        """Gives a block to a tensor that PyTorch made without asking the dispatcher (torch.tensor)."""
        self.machine.operator = None
        try:
            with _no_functions():
                return uninterrupted(self.allocate, tensor)
        except OutOfMemory as error:
            message = str(error)
        raise torch.OutOfMemoryError(message)

    def cross(self, destination, source, to_gpu: bool, non_blocking: bool) -> None:
        """Takes what a copy between host and GPU takes on the way."""
        try:
            transfer.crossed(self.machine, destination, source, to_gpu, non_blocking)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from None
        costs.cross(self.machine, destination, source, non_blocking)
        home = residence.of(source) if to_gpu else None
        for line in () if home is None else home.lines:
            line.decides_size()

    def read_value(self, tensor) -> None:
        """The host asks for a tensor's value: a copy of an element, for which it waits."""
        if on_gpu(tensor):
            self.machine.waits()
            clock = self.machine.clock
            clock.copy(self.machine.stream, tensor.element_size(), TO_HOST, pinned=True, blocking=True)

    def scalar(self, tensor):
        """A value that PyTorch's C++ asks for: nan if it is a float, NoValueError if it is not known."""
        self.read_value(tensor)
        known = values.of(tensor)
        if known is not None:
            return known.item()
        if self.function_depth == 0 and tensor.dtype == torch.bool and torch.is_anomaly_check_nan_enabled():
            return False  # the engine asks whether a gradient is NaN (engine.cpp): see `finite`
        if tensor.dtype.is_floating_point:
            return values.nan()
        if self.machine.stand_ins is not None:
            line, number = self.machine.stand_ins.note("item()"), zeros_like(tensor).item()
            if tensor.dtype == torch.bool:
                line.branches = True
            else:
                size_probe.look_inside(line, self.functions)
            return number
        raise NoValueError(
            f"PyTorch asks for the value of a simulated {tensor.dtype} tensor inside an operator, and it has none: the "
            f"simulated GPU computes memory, not values. {machines.remedy()}."
        )

    def place_of(self, facts, tensors, args, kwargs):
        """Where the operator runs: GPU, HOST, or None (no simulated tensor). Raises what CUDA raises on a mixture."""
        gpu = host = real = None
        for tensor in tensors:
            if not tensor.is_meta:
                if tensor.dim() > 0:
                    real = tensor
                continue
            found = residence.find(tensor.untyped_storage())
            if found is None:
                continue
            if found.machine is not self.machine:
                raise self.of_another_gpu(found.machine, facts.operator)
            if found.home is not HOST:
                gpu = tensor
            elif host is None or tensor.dim() > 0:
                host = tensor
        if gpu is None:
            return HOST if host is not None else None
        if facts.wants_one_device and any(not on_gpu(one) for one in tensors):
            raise wrong_device.error(facts.operator, args, kwargs)
        stranger = real if real is not None else host if host is not None and host.dim() > 0 else None
        allowed = facts.crosses or facts.takes_host_values or (facts.takes_host_index and on_gpu(args[0]))
        if stranger is not None and not allowed:
            raise wrong_device.error(facts.operator, args, kwargs)
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
    """A tensor of the host for one that was copied there from the GPU, where an operator reads it: the values that are
    known, or stand-ins. Raises NoValueError where there are neither. Any other argument is itself."""
    place = residence.of(argument) if isinstance(argument, torch.Tensor) else None
    if place is None or place.home is not HOST:
        return argument
    unknown = f"the lengths were copied from the simulated GPU, where they have no values. {machines.remedy()}."
    return values.deciding(argument, operator._opname, unknown, least=1)


def without_host_values(args, kwargs, scalars_too: bool):
    """The arguments with real CPU tensors replaced by meta ones, as meta kernels want them (some: scalars too)."""

    def stand_in(value):
        if isinstance(value, torch.Tensor) and not value.is_meta and (value.dim() > 0 or scalars_too):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, list):
            found = copy(value)  # with what a list of indices knows of its masks (selection.py)
            found[:] = map(stand_in, value)
            return found
        return tuple(map(stand_in, value)) if isinstance(value, tuple) else value

    return tuple(map(stand_in, args)), {name: stand_in(value) for name, value in kwargs.items()}
