"""Runs one operator in named stages, of which each operator has those that it needs.

The stages are, in this order: place, check, read_host, decompose, prepare, leave_to_torch, read_scalar or copy_to_host,
shapes, allocate, time, check_number, follow_values. A stage is a function of a `StagedCall`. It returns True if the
call is done. `_stages` decides once per operator which stages its calls go through. `SIMGPU_DEBUG=ops` prints them.
"""

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from simgpu.allocator.caching import OutOfMemory
from simgpu.autograd import accumulation, formulas
from simgpu.checks import devices, dtypes, missing_cuda_kernels, number_ranges, overlaps
from simgpu.cpu_reference import execute
from simgpu.device.machine import Machine
from simgpu.dispatch import costs, unknown_sizes
from simgpu.dispatch.op_traits import KERNEL, OpTraits
from simgpu.op_info import composite_explicit
from simgpu.op_info.arguments import outputs_of, results_in, tensors_in
from simgpu.op_info.op_spec import mark
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.ops import OpCall, decomposition_of, transfer
from simgpu.storage import storage_map, values
from simgpu.storage.storage_map import HOST, on_gpu

if TYPE_CHECKING:
    from simgpu.dispatch.dispatch_mode import DispatchMode

GPU = "gpu"
_COPY, _LOCAL_SCALAR = torch.ops.aten.copy_.default, torch.ops.aten._local_scalar_dense.default

# Values of an operator that a Python function decomposes are computed for the operator as a whole, but for these.
mark("masked_select index_put equal", parts_have_values=True)
mark("repeat_interleave.Tensor segment_reduce", parts_read_values=True)


@dataclass(slots=True, init=False, eq=False)
class StagedCall:
    """One call of an operator on its way through the stages."""

    mode: "DispatchMode"
    here: Any  # the mode's state in this thread
    machine: Machine
    traits: OpTraits
    operator: Any
    args: tuple  # with meta tensors in place of the host's, from the stage `shapes` on
    kwargs: dict
    given: tuple  # as the kernel gets them
    named: dict
    tensors: list[torch.Tensor]  # those among the arguments
    place: Any  # GPU, HOST, or None if no simulated tensor is concerned
    by_engine: bool  # whether autograd's engine calls it
    result: Any
    outputs: tuple  # the tensors of `result`

    def __init__(self, mode: "DispatchMode", traits: OpTraits, operator, args: tuple, kwargs: dict):
        self.mode, self.here, self.machine = mode, mode.here, mode.machine
        self.traits, self.operator, self.args, self.kwargs = traits, operator, args, kwargs
        self.by_engine = self.here.function_depth == 0 and torch._C._current_graph_task_id() != -1
        self.place = self.result = None

    @property
    def makes_on_gpu(self) -> bool:
        """Returns whether a factory is to create its tensor on the simulated GPU."""
        return self.here.new_tensors_go == GPU and _names_meta(self.kwargs)


def run(mode: "DispatchMode", traits: OpTraits, operator, args: tuple, kwargs: dict) -> Any:
    """Runs one operator where it belongs: on the simulated GPU, on the host, or on PyTorch's own meta device."""
    call = StagedCall(mode, traits, operator, args, kwargs)
    for stage in traits.stages:
        if stage(call):
            break
    return call.result


def _stages(traits: OpTraits):
    """Yields the stages of an operator in order."""
    if traits.spec.has_formula:
        yield note_forward
    yield place
    if any(one is not None for one in (traits.absent, traits.overlaps, traits.spec.refuse, traits.dtypes)):
        yield check
    if traits.spec.values_on_host:
        yield read_host
    if traits.may_be_decomposed:
        yield decompose
    if traits.spec.preprocess is not None:
        yield prepare
    yield leave_to_torch
    if traits.operator is _LOCAL_SCALAR:
        yield read_scalar
    if traits.operator is _COPY:
        yield copy_to_host
    yield from (shapes, allocate, time)
    if traits.spec.converted_number is not None:
        yield check_number
    yield follow_values


def _traits_of(operator) -> OpTraits:
    traits = OpTraits(operator)
    traits.stages = tuple(_stages(traits)) if traits.kind is KERNEL else ()
    return traits


traits_of = per_op_cache(_traits_of)
"""Returns the traits of an OpOverload, with its stages; found out once."""


def note_forward(call: StagedCall) -> None:
    """Records that an operator whose backward formula `formulas` knows has run."""
    call.here.seen.add(call.operator)


def place(call: StagedCall) -> None:
    """Finds out where the operator runs: GPU, HOST, or None (no simulated tensor).

    Raises CUDA's error for a mixture of devices.
    """
    call.tensors = tensors = tensors_in((*call.args, *call.kwargs.values()))
    machine, traits = call.machine, call.traits
    gpu = host = real = None
    for tensor in tensors:
        if not tensor.is_meta:
            if tensor.dim() > 0:
                real = tensor
            continue
        home = storage_map.find(tensor.untyped_storage())
        if home is None:
            continue
        if home.machine is not machine:
            raise _of_another_gpu(home.machine, call)
        if home.home is not HOST:
            gpu = tensor
        elif host is None or tensor.dim() > 0:
            host = tensor
    if gpu is None:
        call.place = HOST if host is not None else None
        return
    call.place = GPU
    if traits.wants_one_device and any(not on_gpu(tensor) for tensor in tensors):
        raise devices.error(call.operator, call.args, call.kwargs)
    stranger = real if real is not None else host if host is not None and host.dim() > 0 else None
    declared = traits.spec
    may_be_there = declared.crosses_devices or declared.values_on_host
    if stranger is not None and not (may_be_there or (declared.index_on_host and on_gpu(call.args[0]))):
        raise devices.error(call.operator, call.args, call.kwargs)


def _of_another_gpu(other, call: StagedCall) -> RuntimeError:
    return RuntimeError(
        f"a tensor of the simulated {other.spec.key} was given to {call.operator} on the simulated "
        f"{call.machine.spec.key}; a tensor is of use only inside the simulated_gpu() that made it"
    )


def check(call: StagedCall) -> None:
    """Raises CUDA's error for a call that CUDA refuses before it allocates anything."""
    traits, on = call.traits, call.place == GPU
    if on and traits.absent is not None:
        raise missing_cuda_kernels.error(traits.absent)
    if on and traits.overlaps is not None:
        overlaps.check(traits.overlaps, call.operator, call.args, call.kwargs)
    if on or (not call.tensors and call.makes_on_gpu):
        if traits.spec.refuse is not None:
            traits.spec.refuse(call.operator, call.args, call.kwargs)
        if traits.dtypes is not None:
            dtypes.check(traits.dtypes, call.operator, call.args, call.kwargs, call.tensors)


def read_host(call: StagedCall) -> None:
    """Gives an operator that reads values on the host the known ones, or placeholders."""
    call.args = tuple(unknown_sizes.of_the_host(value, call.operator) for value in call.args)


def parts_of(call: StagedCall):
    """Returns what runs in place of this call: (a function, or None for PyTorch's own kernel). None if nothing does."""
    if call.place == GPU or (call.traits.creates_by_decomposition and call.makes_on_gpu):
        parts = decomposition_of(call.operator, call.args, call.kwargs)
        if parts is not None and not (call.by_engine and _works_in_place(call)):
            return parts
    return None


def decompose(call: StagedCall) -> bool:
    """Runs the operators of which CUDA's kernel is made, each of which is seen in turn; True if it is made of some."""
    parts = parts_of(call)
    if parts is None:
        return False
    call.result = _run_parts(call, *parts)
    if call.by_engine:
        call.here.count += 1
        if torch.is_grad_enabled():
            call.here.seen.add(formulas.TWICE)
        _note_made(call, results_in(call.result))
    return True


def _run_parts(call: StagedCall, function):
    """Runs a Python function, or PyTorch's own kernel if it is None, and returns its result."""
    operator, here, traits, mode = call.operator, call.here, call.traits, call.mode
    declared = traits.spec
    depth, apart = here.function_depth, here.apart
    whole = function is not None and not declared.parts_have_values and not traits.made_in_python
    try:
        here.function_depth = depth + 1
        here.apart = apart or (whole and not declared.parts_read_values)
        with mode:
            if function is None:
                result = operator._op_dk(composite_explicit.kernel_of(operator), *call.args, **call.kwargs)
            else:
                with mode.face() if traits.made_in_python else nullcontext():
                    result = function(*call.args, **call.kwargs)
        if whole and not apart:
            _follow(call.machine, operator, call.args, call.kwargs, outputs_of(result))
        if declared.kernel_among_others:
            costs.issue(call.machine, operator, call.args, call.kwargs, outputs_of(result))
        return result
    except RuntimeError as error:
        if unknown_sizes.is_refusal_of_meta(error):
            raise unknown_sizes.explained(operator) from None
        raise
    finally:
        here.function_depth, here.apart = depth, apart


def prepare(call: StagedCall) -> None:
    """Converts the arguments as CUDA's code does with operators of its own, which count as part of this one."""
    conversion = call.traits.spec.preprocess
    if call.place == GPU and conversion and conversion.function and conversion.holds(call.args, call.kwargs):
        count = call.here.count
        with call.mode:
            call.args = conversion.function(*call.args, **call.kwargs)
        call.here.count = count
        place(call)


def leave_to_torch(call: StagedCall) -> bool:
    """Runs a call that concerns no simulated tensor as PyTorch does, and decides where new tensors go."""
    on_meta = _names_meta(call.kwargs)  # by name, like all tensors of the GPU
    new_tensors_go = call.here.new_tensors_go
    if (call.place is None and not on_meta) or (on_meta and new_tensors_go == "meta"):
        return _on_torch(call)  # runs on the host, or on PyTorch's own meta device
    if new_tensors_go is HOST:
        call.place = HOST
    elif new_tensors_go is not None:
        call.place = GPU if on_meta and new_tensors_go == GPU else call.place
    elif call.place is None and all_meta(call.here.given):  # C++ creates it in a call on PyTorch's own meta tensors
        return _on_torch(call)
    return False


def _on_torch(call: StagedCall) -> bool:
    call.result = call.operator(*call.args, **call.kwargs)
    return True


def _names_meta(kwargs: dict) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def all_meta(arguments) -> bool:
    """Returns whether a call has tensor arguments, and all of them are PyTorch's own meta tensors."""
    tensors = tensors_in(arguments)
    return bool(tensors) and all(tensor.is_meta and storage_map.of(tensor) is None for tensor in tensors)


def read_scalar(call: StagedCall) -> bool:
    """Reads a value for PyTorch's C++, which is all that `_local_scalar_dense` does."""
    call.result = call.mode.scalar(call.args[0])
    return True


def copy_to_host(call: StagedCall) -> bool:
    """Copies into a host tensor that has values; True for such a copy."""
    if call.args[0].is_meta:
        return False
    if call.place is not HOST:
        call.outputs = ()
        _allocate_on_gpu(call)
        time(call)
    transfer.write(*call.args[:2])
    call.result = call.args[0]
    return True


def shapes(call: StagedCall) -> None:
    """Runs the operator on meta tensors, which gives shapes and strides, and no values."""
    traits, here, operator = call.traits, call.here, call.operator
    call.given, call.named = call.args, call.kwargs
    real = [tensor for tensor in call.tensors if not tensor.is_meta]
    if real and not traits.spec.crosses_devices:
        scalars_too = traits.spec.scalar_on_host
        if scalars_too or any(tensor.dim() for tensor in real):
            call.args, call.kwargs = _without_host_values(call.args, call.kwargs, scalars_too)
    here.count += 1
    if call.by_engine:
        call.kwargs = formulas.as_on_cuda(operator, call.args, call.kwargs)
        if torch.is_grad_enabled():
            here.seen.add(formulas.TWICE)
        guess = formulas.guessed(operator, here.seen)
        if guess is not None:
            call.machine.unmodeled.add(guess.name, guess.why, lower_bound=False)
    call.result = unknown_sizes.shapes(call)
    if call.by_engine and call.place is not HOST and _works_in_place(call):
        call.result = _in_place_of(call.args[0], call.result)
    call.outputs = outputs_of(call.result)


def _without_host_values(args, kwargs, scalars_too: bool):
    """Returns the arguments with real CPU tensors replaced by meta ones, as meta kernels need (for some: scalars
    too).
    """

    def as_meta(value):
        if isinstance(value, torch.Tensor) and not value.is_meta and (value.dim() > 0 or scalars_too):
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, list):
            replaced = copy(value)  # keeps what a list of indices records about its masks (selection.py)
            replaced[:] = map(as_meta, value)
            return replaced
        return tuple(map(as_meta, value)) if isinstance(value, tuple) else value

    return tuple(map(as_meta, args)), {name: as_meta(value) for name, value in kwargs.items()}


def _works_in_place(call: StagedCall) -> bool:
    """Returns whether autograd's engine, without a dispatch mode, would have written this result into the first
    operand.
    """
    operator, args, here = call.operator, call.args, call.here
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if first is None or not formulas.concerns(operator) or accumulation.transformed():
        return False
    does = None
    if accumulation.unshared_storage(first):
        made = getattr(storage_map.find(first.untyped_storage()), "made", None)
        does = formulas.made_by_formula(operator, made, here.count, here.seen)
    return accumulation.accumulates(operator, args) if does is None else does != formulas.ANEW


def _in_place_of(first, result):
    """Returns the result in the memory and with the strides of `first`."""
    if result.stride() != first.stride():
        result = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="meta")
    storage = result.untyped_storage()
    home = storage_map.find(first.untyped_storage())
    assert home is not None, "_works_in_place needs simulated tensors"
    storage_map.share(storage, home, storage.nbytes())
    return result


def allocate(call: StagedCall) -> None:
    """Allocates what CUDA would; on the host, the outputs only get their entries in the storage map."""
    if call.place is not HOST:
        return _allocate_on_gpu(call)
    for output in call.outputs:
        call.mode.count_on_host(output)
    _keep_lines(call)
    return None


def _allocate_on_gpu(call: StagedCall) -> None:
    """Allocates the outputs and the scratch memory of the operator's rule, in CUDA's order."""
    machine, traits, allocate_one = call.machine, call.traits, call.mode.allocate
    machine.operator = call.operator
    if machine.before_memory is not None:
        machine.before_memory(call.args)
    if traits not in call.mode.ran:
        call.mode.ran.add(traits)
        machine.unmodeled.ran(call.operator)
    try:
        rule = rule_of(call)
        if rule is None:
            for output in call.outputs:
                allocate_one(output)
            return
        in_backward = accumulation.in_its_thread()
        op_call = OpCall(call.operator, call.args, call.kwargs, call.outputs, machine, in_backward, allocate_one)
        try:
            rule(op_call)
            op_call.allocate_outputs(*call.outputs)
        finally:
            op_call.finish()
        return
    except OutOfMemory as error:
        message = str(error)
    raise torch.OutOfMemoryError(message)  # raised outside the handler, so that no context keeps the outputs alive


def rule_of(call: StagedCall) -> Callable | None:
    """Returns the operator's rule in this version of torch, or None."""
    newer = call.traits.spec.allocate_since
    return newer.function if newer is not None and call.machine.torch_version >= newer.version else call.traits.rule


def _keep_lines(call: StagedCall) -> None:
    """Keeps the lines of placeholder values that decide sizes on the host.

    On the host such a size uses no GPU memory. But the lines stay with what is computed from it, in case that is copied
    to the GPU.
    """
    homes = [storage_map.find(tensor.untyped_storage()) for tensor in call.tensors if tensor.is_meta]
    lines = dict.fromkeys(line for home in homes if home is not None for line in home.lines)
    lines, call.here.lines = (*lines, *call.here.lines), ()
    for output in call.outputs if lines else ():
        home = storage_map.of(output) if isinstance(output, torch.Tensor) else None
        if home is not None and home.home is HOST:
            home.lines = lines


def time(call: StagedCall) -> None:
    """Adds the operator's kernels to the clock; work on the host takes no time there."""
    if call.place is not HOST:
        costs.issue(call.machine, call.operator, call.args, call.kwargs, call.outputs)


def check_number(call: StagedCall) -> None:
    """Raises CUDA's error for a number that its kernel can't convert to the result's dtype."""
    number_ranges.check(call.operator, call.given, call.named, call.outputs[0])


def follow_values(call: StagedCall) -> None:
    """Updates the known values of results and of written tensors, and records which operator made the results."""
    if call.by_engine:
        _note_made(call, call.outputs)
    if not call.here.apart:
        _follow(call.machine, call.operator, call.given, call.named, call.outputs)


def _follow(machine, operator, args, kwargs, outputs) -> None:
    """Keeps known values up to date; computes all values if they are requested."""
    if machine.host_memory is None:
        values.follow(operator, args, kwargs, outputs)
    else:
        execute.follow(machine, operator, args, kwargs, outputs)


def _note_made(call: StagedCall, outputs) -> None:
    """Records which operator made these tensors, for `formulas`."""
    made = formulas.Made(call.operator, call.here.count)
    for output in outputs:
        home = storage_map.find(output.untyped_storage()) if isinstance(output, torch.Tensor) else None
        if home is not None and home.made is None:
            home.made = made
