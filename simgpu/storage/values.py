"""Constant propagation: small tensors that are computed only from known inputs keep their values.

A simulated tensor normally has no values. But models read masks, positions and lengths to decide which operators run,
for example whether a mask lets everything through. So tensors of up to LIMIT elements that come from the host, or are
made by `ones`, `arange` and the like, have values in addition to the simulated storage (see expressions.py). So do
results that operators compute from such tensors alone. All other values are unknown: those of host tensors with more
than FLOATS floating-point elements (weights and data), of random numbers, and of everything that depends on either.
Reading one raises an error.
"""

from contextlib import suppress
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import placeholder_values
from simgpu.device import machine as machines
from simgpu.errors import NoValueError
from simgpu.op_info import arguments
from simgpu.op_info.op_spec import mark, spec
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.storage import host_memory, storage_map
from simgpu.storage.expressions import Call, Expression, taking_numbers, view
from simgpu.storage.host_memory import Buffer
from simgpu.storage.layout import is_dense

LIMIT = 2**20  # elements; larger masks would cost the simulation more time than their values are worth
FLOATS = 4096  # elements of one tensor from the host

_aten = torch.ops.aten
# Operators for which the previous content of the tensor does not matter.
mark("fill_.Scalar fill_.Tensor zero_ copy_", overwrites=True)
# Operators whose result is decided by one operand that is false, or true, everywhere, whatever the other one is.
for _name, _value in (("and", False), ("or", True)):
    mark(f"bitwise_{_name}.Tensor bitwise_{_name}_.Tensor bitwise_{_name}.Tensor_out", decided_by=_value)
    mark(f"logical_{_name} logical_{_name}_ logical_{_name}.out", decided_by=_value)
    mark(f"__{_name}__.Tensor __i{_name}__.Tensor", decided_by=_value)
_DECIDING = 4096  # elements of such an operand, which is computed immediately
_ALLOCATING = ("empty", "resize")  # parts of names of operators that leave values undefined


class UnknownError(Exception):
    """Raised for an operand whose values are unknown."""


def nan() -> float:
    """Returns the value of a float that is unknown: nan, or 0.0 on a GPU with placeholder values.

    With nan, a warning says so once per simulated GPU.
    """
    machine = machines.on()
    if machine.placeholder_values is not None:
        return placeholder_values.given(machine.placeholder_values, "item()", 0.0)
    machine.unmodeled.say(
        "nan", "simulated tensors have no values: item(), float() and formatting give nan on the simulated GPU"
    )
    return float("nan")


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the values of a simulated tensor on the CPU, which must not be written to, or None if they are
    unknown.
    """
    place = storage_map.find(tensor.untyped_storage())
    if place is None:
        return None
    if type(place.values) is Buffer:
        return _in_buffer(place.values, tensor)
    if not tensor.numel():
        return _empty(tensor)
    if place.values is None or tensor.numel() > LIMIT:
        return None
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        content = place.values.bytes()
        return None if content is None else view(place.values, tensor).tensor(content)


def deciding(tensor: torch.Tensor, operator: str, unknown: str, least: int = 0) -> torch.Tensor:
    """Returns the values of a tensor from which an operator reads a size: integers on the CPU.

    If they are unknown, a simulated GPU with placeholder values returns `least` for each, the smallest sensible value,
    and records that `operator` decides a size. Without placeholder values it raises NoValueError with the text
    `unknown`.
    """
    known = tensor if storage_map.of(tensor) is None else of(tensor)
    if known is not None:
        return known
    placeholder_values = machines.on().placeholder_values
    if placeholder_values is None:
        raise NoValueError(unknown)
    placeholder_values.note(operator).decides_size()
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return torch.full(tensor.shape, least, dtype=tensor.dtype, device="cpu")


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor without elements, which cannot be unknown."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _in_buffer(buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return buffer.under(tensor)


def keep(tensor: torch.Tensor, known: torch.Tensor) -> None:
    """Records the values of a simulated tensor that fills its storage."""
    place = storage_map.find(tensor.untyped_storage())
    if place is not None and place.nbytes == tensor.nbytes:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            place.values = _result(_converted, (known.clone(),), tensor, place)


def carry(source: torch.Tensor, copy: torch.Tensor) -> None:
    """Copies values along when a tensor is copied from the host to the GPU or back."""
    place = storage_map.find(copy.untyped_storage())
    if place is None:
        return
    if place.machine.host_memory is not None:
        _copy(source, copy, place)
        return
    if place.nbytes != copy.nbytes or copy.numel() > LIMIT:
        return
    with torch._C.DisableTorchFunction(), _disable_current_modes(), suppress(UnknownError):
        place.values = _result(_converted, (_operand(source),), copy, place)


def _copy(source, copy, place) -> None:
    """Copies a tensor's known values, if all tensors have values."""
    memory = place.machine.host_memory
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        known = of(source) if source.is_meta else source
        if known is None:
            return
        if place.values is None:
            place.values = host_memory.zeros(place.nbytes, memory)
        place.values.under(copy).copy_(known)


def _converted(source: torch.Tensor) -> torch.Tensor:
    return source


def _result(function, args, tensor, place) -> Expression:
    """Returns the expression of a function's only result, a tensor in `place`."""
    where = view(Expression(place.nbytes), tensor)
    return Expression(place.nbytes, call=Call(function, args, {}, outputs={0: where}), slot=0)


class _Written(NamedTuple):
    """Position and name of the arguments that an operator writes. `in_training` limits this to calls in training
    mode.
    """

    arguments: tuple[tuple[int, str], ...]
    in_training: bool = False


@per_op_cache
def _written(operator) -> _Written:
    declared = list(enumerate(operator._schema.arguments))
    if operator in (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default):  # not in their schemas
        return _Written(tuple((i, one.name) for i, one in declared if one.name.startswith("running_")), True)
    told = [(i, one.name) for i, one in declared if one.alias_info is not None and one.alias_info.is_write]
    return _Written(tuple(told))


@per_op_cache
def _outs(operator) -> tuple[str, ...]:
    """Returns the names of the out= arguments, to which an operator writes all of its results."""
    told = (one for one in operator._schema.arguments if one.kwarg_only and one.alias_info is not None)
    return tuple(one.name for one in told if one.alias_info.is_write)


@per_op_cache
def _gives_values(operator) -> bool:
    """Returns whether an operator's results follow from its arguments: nothing random, and nothing left undefined."""
    drawn = torch.Tag.nondeterministic_seeded in operator.tags
    return not drawn and not any(part in operator._schema.name for part in _ALLOCATING)


def computed(operator, args, kwargs):
    """Returns an operator's result on the CPU for simulated tensors with known values.

    Raises UnknownError if a value is unknown, or if the result does not follow from the arguments.
    """
    if not _gives_values(operator):
        raise UnknownError
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        given = tuple(map(_known, args))
        named = {name: _known(one) for name, one in kwargs.items() if name != "device"}
        return taking_numbers(operator, given)(*given, **named)


def _known(argument):
    if isinstance(argument, torch.Tensor) and argument.is_meta:
        known = of(argument)
        if known is None:
            raise UnknownError
        return known
    if isinstance(argument, (list, tuple)):
        return [_known(item) for item in argument]
    return argument


class _Plan:
    """Holds what `follow` needs to know of an operator, found out once."""

    def __init__(self, operator):
        self.writes = bool(_written(operator).arguments)
        self.outs = _outs(operator)
        self.gives_values = _gives_values(operator)
        self.overwrites = spec(operator).overwrites
        self.decided = spec(operator).decided_by is not None
        self.moves = operator._schema.name in ("aten::set_", "aten::resize_")


_plan_of = per_op_cache(_Plan)


def follow(operator, args, kwargs, outputs) -> None:
    """Updates values after an operator ran on simulated tensors: records its results, or marks what it wrote as
    unknown.
    """
    plan = _plan_of(operator)
    if plan.moves:
        return  # the tensor now has a different storage, where nothing was written; a resized one has lost its values
    written = _places_written(operator, args, kwargs) if plan.writes else ()
    if written:
        changing = plan.overwrites or plan.decided
        if not changing and not plan.outs and not any(place.values is not None for place in written):
            return
    elif not _any_small(outputs):
        return
    try:
        if not plan.gives_values:
            raise UnknownError
        outs = plan.outs
        named = {name: _operand(one, name in outs) for name, one in kwargs.items() if name != "device"}
        others = [_operand(one) for one in args[1:]]  # processed before the first one, which may then not be needed
        given = (*(_operand(one, plan.overwrites) for one in args[:1]), *others)
    except UnknownError:
        for place in written:
            place.values = None
        if plan.decided and _decided(operator, args, outputs[0].dtype):
            value = bool(spec(operator).decided_by)
            keep(outputs[0], torch.full(outputs[0].shape, value, dtype=outputs[0].dtype, device="cpu"))
        return
    _note(operator, given, named, written, outputs)


def _any_small(outputs) -> bool:
    for one in outputs:  # noqa: SIM110  # a generator takes twice as long, at every operator
        if isinstance(one, torch.Tensor) and one.numel() <= LIMIT:
            return True
    return False


def _decided(operator, args, dtype) -> bool:
    """Returns whether one known operand decides the result: `True or x`, `0 and x`."""
    wanted = spec(operator).decided_by
    if wanted and dtype != torch.bool:
        return False  # 1 or 6 is 7
    for one in args[:2]:
        if not isinstance(one, torch.Tensor) or one.numel() > _DECIDING:
            continue
        known = of(one) if one.is_meta else None
        if known is not None and bool((known != 0).all() if wanted else (known == 0).all()):
            return True
    return False


def _note(operator, given, named, written, outputs) -> None:
    """Sets the expressions of the storages of a call's results, and of those that it wrote to."""
    before = [(place, place.values) for place in written if place.values is not None]
    if _plan_of(operator).overwrites:
        before = [(written[0], given[0].of)]
    elif _outs(operator):
        given_to = [named[name].of for name in _outs(operator)]
        # the last ones, because `out` of batch norm comes after the running statistics
        outs = written[-len(given_to) :]
        before = [*before, *((a, b) for a, b in zip(outs, given_to, strict=True) if a.values is None)]
    new = {}
    cut = torch.Tag.dynamic_output_shape in operator.tags  # its results may be slices of a longer tensor: torch.unique
    for number, output in enumerate(outputs):
        place = storage_map.find(output.untyped_storage()) if isinstance(output, torch.Tensor) else None
        if place is None or place.values is not None or output.numel() > LIMIT:
            continue
        if (place.nbytes == output.nbytes or cut) and all(place is not other for other, _ in before):
            new[number] = place, view(Expression(place.nbytes), output)
    old_ones = [old for _, old in before]
    call = Call(operator, given, named, old_ones, {number: where for number, (_, where) in new.items()})
    for number, (place, _) in new.items():
        place.values = Expression(place.nbytes, call=call, slot=number)
    for place, old in before:
        place.values = Expression(place.nbytes, call=call, slot=old)


def _places_written(operator, args, kwargs) -> list:
    """Returns the entries of the tensors that a call writes to."""
    places = []
    written = _written(operator)
    if written.in_training and not arguments.given(operator, "training", args, kwargs):
        return places
    for position, name in written.arguments:
        argument = args[position] if position < len(args) else kwargs.get(name)
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(tensor, torch.Tensor):
                place = storage_map.find(tensor.untyped_storage())
                if place is not None:
                    places.append(place)
    return places


def _operand(argument, blank: bool = False):
    """Converts an argument to the form that a `Call` stores. `blank` says that the call overwrites all of it."""
    if isinstance(argument, torch.Tensor):
        if argument.numel() > LIMIT:
            raise UnknownError
        if not argument.is_meta:
            return _from_host(argument)
        place = storage_map.find(argument.untyped_storage())
        if place is None:
            raise UnknownError
        whole = place.nbytes == argument.nbytes and is_dense(argument)
        if not argument.numel() and argument.is_floating_point() and _sizes_are_unknown(place.machine):
            raise UnknownError  # it may be empty here alone, and the mean of nothing is NaN
        if (blank and whole) or not argument.numel():  # none of its values are needed
            return view(Expression.blank(place.nbytes), argument)
        if place.values is None:
            raise UnknownError
        return view(place.values, argument)
    if isinstance(argument, (list, tuple)):
        return [_operand(item) for item in argument]
    return argument


def _sizes_are_unknown(machine) -> bool:
    """Returns whether placeholder values have decided sizes so far."""
    return machine.placeholder_values is not None and machine.placeholder_values.decide_sizes()


def _from_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a host tensor, because its owner may change it."""
    if tensor.layout is not torch.strided or (tensor.is_floating_point() and tensor.numel() > FLOATS):
        raise UnknownError
    return tensor.detach().clone()
