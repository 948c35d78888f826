"""Computes on the CPU the values of an operator that has run on the simulated GPU, into the buffers of its results."""

from __future__ import annotations

import contextlib
from enum import Enum

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.cpu_reference import randomness
from simgpu.cpu_reference.cpu_call import Call
from simgpu.device import machine as machines
from simgpu.op_info.op_spec import spec
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.storage import host_memory, storage_map
from simgpu.storage.expressions import taking_numbers

_aten = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_IN_SINGLE = frozenset(
    {"convolution", "convolution_backward", "mv", "addmv", "addmv_"}
    | {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"}
)
"""Convolutions and products, which CUDA sums in single precision and rounds once. In half precision, a CPU without
instructions for it computes them far more slowly (15 to 22 times on an AMD EPYC, torch 2.13)."""
_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # pyright: ignore[reportAttributeAccessIssue]
for _name in ("AutocastCPU", "AutocastCUDA"):
    _keys = _keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))


class Kind(Enum):
    """Says what an operator requires."""

    NOTHING = "it changes no values: a tensor lies otherwise, or in another storage"
    EMPTY = "its results are undefined; here they are zeros"
    RESIZE = "a storage becomes larger or smaller"
    COMPUTE = "it is computed"


class _UnknownError(Exception):
    """Raised for an operand that has no values."""


@contextlib.contextmanager
def on_the_cpu():
    """Runs operators on CPU tensors as plain PyTorch, without modes, autocast or autograd."""
    with (
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._ExcludeDispatchKeyGuard(_keys),
    ):
        yield


class _Plan:
    """Holds what is the same for every call of an operator.

    `written`: position and name of the arguments that it writes. `in_single`: whether half-precision arguments are
    computed in single precision.
    """

    __slots__ = ("draws", "equivalent", "in_single", "kind", "may_take_numbers", "written")

    def __init__(self, operator):
        arguments = operator._schema.arguments
        self.written = [
            (i, one.name) for i, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write
        ]
        self.equivalent = spec(operator).cpu
        self.in_single = operator.namespace == "aten" and operator._opname in _IN_SINGLE and self.equivalent is None
        self.draws = torch.Tag.nondeterministic_seeded in operator.tags
        self.kind = _kind_of(operator)
        self.may_take_numbers = sum(str(one.type) == "Tensor" for one in arguments) > 1


def _kind_of(operator) -> Kind:
    name = operator._opname
    if name in ("resize_", "resize_as_"):
        return Kind.RESIZE
    if name == "set_" or torch.Tag.inplace_view in operator.tags:
        return Kind.NOTHING
    return Kind.EMPTY if "empty" in name and "out" not in operator._overloadname else Kind.COMPUTE


_plan_of = per_op_cache(_Plan)


def follow(machine, operator, args, kwargs, outputs) -> None:
    """Computes one call; `args` and `kwargs` as the program passed them, `outputs` as the simulated GPU created them.

    Raises what the CPU raises for invalid values (an index out of range), and HostMemoryError if the results do not fit
    in host memory.
    """
    plan = _plan_of(operator)
    if plan.kind is Kind.NOTHING:
        return
    with on_the_cpu():
        if plan.kind is Kind.RESIZE:
            _resize(machine, args[0])
            return
        if plan.kind is Kind.EMPTY:
            _leave_undefined(machine, outputs)
            return
        here: dict[int, object] = {}  # entries of the arguments, by identity
        try:
            call = _taken(operator, args, kwargs, outputs, here)
        except _UnknownError:
            _forget(plan, args, kwargs)
            return
        new = _new_places(outputs, here)
        if not new and not plan.written and operator._schema.returns:
            return  # an alias of an argument
        machine.host_memory.take(sum(place.nbytes for place, _ in new if place is not None))
        results = _computed(machine, plan, call)
        if results is NotImplemented:
            _forget(plan, args, kwargs)
            return
        for (place, output), result in zip(new, results, strict=False):
            if place is not None and isinstance(result, torch.Tensor):
                _put(machine, place, output, result)
            elif place is not None:
                place.values = host_memory.zeros(place.nbytes, machine.host_memory)
        capture = machine.clock.capture
        if capture is not None and machine.stream in capture.streams:
            capture.computed.append(_again(machine, plan, call, new))


def _again(machine, plan, call, new):
    """Returns a function that recomputes a call of a CUDA graph from the current values of its arguments into its
    results.
    """
    places = [None if place is None or place.values is None else place.values.under(output) for place, output in new]

    def compute() -> None:
        with on_the_cpu():
            for place, result in zip(places, _computed(machine, plan, call), strict=False):
                if place is not None and isinstance(result, torch.Tensor):
                    place.copy_(result.reshape(place.shape))

    return compute


def _taken(operator, args, kwargs, outputs, here) -> Call:
    """Returns the call with CPU tensors. Raises _UnknownError if one of its tensors has no values."""

    def taken(argument):
        if isinstance(argument, torch.Tensor):
            return _under(argument, here) if argument.is_meta else argument
        if isinstance(argument, (list, tuple)):
            return [taken(one) for one in argument]
        return argument

    named = {
        name: host_memory.CPU if name == "device" else taken(one)
        for name, one in kwargs.items()
        if name != "pin_memory"
    }
    return Call(operator, [taken(one) for one in args], named, outputs)


def _under(tensor, here) -> torch.Tensor:
    place = storage_map.find(tensor.untyped_storage())
    if place is None or place.values is None:
        if tensor._is_zerotensor():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=host_memory.CPU)
        raise _UnknownError
    here[id(place)] = place
    if place.values.storage.nbytes() < place.nbytes:
        place.values.resize(place.nbytes)
    return place.values.under(tensor)


def _new_places(outputs, here) -> list:
    """Returns each result with its entry, or (None, None) for an alias of an argument or a non-tensor.

    The list is empty if no result is in a new storage.
    """
    found, new = [], False
    for output in outputs:
        place = storage_map.find(output.untyped_storage()) if _is_simulated(output) else None
        if place is None or id(place) in here:
            found.append((None, None))
        else:
            found.append((place, output))
            new = True
    return found if new else []


def _is_simulated(output) -> bool:
    return isinstance(output, torch.Tensor) and output.is_meta


def _put(machine, place, output, result) -> None:
    """Gives a new storage the values of a result."""
    if result.shape != output.shape:
        if result.numel() != output.numel():
            _tell(f"a result of shape {tuple(result.shape)} on the CPU, {tuple(output.shape)} on CUDA")
            return
        result = result.reshape(output.shape)
    if place.values is None:
        place.values = host_memory.holding(result, output, place.nbytes, machine.host_memory)
    else:
        place.values.under(output).copy_(result)


def _computed(machine, plan: _Plan, call: Call):
    """Returns the results of a call on the CPU as a list, or NotImplemented if the CPU lacks the operator."""
    if plan.draws:
        with randomness.of(machine, call.kwargs) as named:
            call.kwargs = named
            return _listed(_tried(plan, call))
    return _listed(_tried(plan, call))


def _listed(results):
    if results is NotImplemented:
        return results
    if isinstance(results, (list, tuple)):
        return [one for result in results for one in (result if isinstance(result, (list, tuple)) else [result])]
    return [results]


def _tried(plan: _Plan, call: Call):
    """Runs a call in the given dtypes, or half precision in fp32 where the plan says so or the CPU has only that."""
    if plan.in_single and (results := _in_single(plan, call)) is not NotImplemented:
        return results
    try:
        return _run(plan, call)
    except NotImplementedError as error:
        reason = str(error)
    except RuntimeError as error:
        reason = str(error)
        if "not implemented for" not in reason and "expected scalar type" not in reason.lower():
            raise
    if (results := _in_single(plan, call)) is NotImplemented:
        _tell(f"{call.operator}, which the CPU does not compute: {reason.splitlines()[0]}")
    return results


def _run(plan: _Plan, call: Call):
    if plan.equivalent is not None:
        return plan.equivalent(call)
    function = taking_numbers(call.operator, call.args) if plan.may_take_numbers else call.operator
    return function(*call.args, **call.kwargs)


def _in_single(plan: _Plan, call: Call):
    """Runs a call in fp32 and casts written arguments back.

    Returns NotImplemented if no argument is in half precision, or if the CPU cannot run it.
    """
    made = []

    def widened(argument):
        if isinstance(argument, torch.Tensor) and argument.dtype in _HALF:
            made.append((argument, argument.float()))
            return made[-1][1]
        if isinstance(argument, list):
            return [widened(one) for one in argument]
        return torch.float32 if argument in _HALF else argument

    args = [widened(one) for one in call.args]
    named = {name: widened(one) for name, one in call.kwargs.items()}
    try:
        results = _run(plan, Call(call.operator, args, named, call.outputs)) if made else NotImplemented
    except (NotImplementedError, RuntimeError):
        return NotImplemented
    if plan.written and made:
        for narrow, wide in made:
            narrow.copy_(wide)
    return results


def _tell(what: str) -> None:
    machines.on().unmodeled.say(
        f"values of {what}", f"values=True: from here on the simulation has no values of {what}"
    )


def _resize(machine, tensor) -> None:
    place = storage_map.find(tensor.untyped_storage())
    if place is not None and place.values is None:
        place.values = host_memory.zeros(place.nbytes, machine.host_memory)
    elif place is not None and place.values.storage.nbytes() < place.nbytes:
        machine.host_memory.take(place.nbytes)
        place.values.resize(place.nbytes)


def _leave_undefined(machine, outputs) -> None:
    for output in outputs:
        place = storage_map.find(output.untyped_storage()) if _is_simulated(output) else None
        if place is not None and place.values is None:
            place.values = host_memory.zeros(place.nbytes, machine.host_memory)


def _forget(plan: _Plan, args, kwargs) -> None:
    """Discards the values of the tensors that a call writes, if the CPU cannot compute it."""
    for position, name in plan.written:
        argument = args[position] if position < len(args) else kwargs.get(name)
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            place = storage_map.find(tensor.untyped_storage()) if _is_simulated(tensor) else None
            if place is not None:
                place.values = None
