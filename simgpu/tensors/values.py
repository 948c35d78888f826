"""Which simulated tensors have values: small ones that nothing random and nothing unknown went into.

A simulated tensor has no values; but of masks, positions and lengths models ask what decides which operators run: does
this mask let everything through? So tensors of up to LIMIT elements that come from the host, or are made by `ones`,
`arange` and the like, have values beside the simulated storage (see expressions.py), and so has what operators make of
such tensors alone. All other values are unknown: of tensors from the host with more than FLOATS floating-point numbers,
which are weights and data, of random numbers, and of what depends on either. Asking for one is an error.
"""

from contextlib import suppress
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import machine as machines
from simgpu import stand_in_numbers
from simgpu.errors import NoValueError
from simgpu.tensors import arguments, buffers, residence
from simgpu.tensors.buffers import Buffer
from simgpu.tensors.expressions import Call, Expression, taking_numbers, view
from simgpu.tensors.identity import once_for_each
from simgpu.tensors.layout import is_dense

LIMIT = 2**20  # elements; larger masks would cost the simulation more time than they decide
FLOATS = 4096  # of one tensor from the host

_aten = torch.ops.aten
# What stood in the tensor before is of no account to them.
_OVERWRITING = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default, _aten.copy_.default}
# One operand that is false, or true, everywhere decides what they give, whatever the other one is.
_DECIDED_BY = {
    getattr(getattr(_aten, f"{kind}_{name}{place}"), overload): name == "or"
    for name in ("and", "or")
    for kind, one, other in (("bitwise", "Tensor", "Tensor_out"), ("logical", "default", "out"))
    for place, overload in (("", one), ("_", one), ("", other))
}
_DECIDED_BY |= {_aten.__and__.Tensor: False, _aten.__iand__.Tensor: False}
_DECIDED_BY |= {_aten.__or__.Tensor: True, _aten.__ior__.Tensor: True}
_DECIDING = 4096  # elements of such an operand, which is computed at once
_ALLOCATING = ("empty", "resize")  # parts of the names of operators that leave values undefined


class UnknownError(Exception):
    """An operand whose values are not known."""


def nan() -> float:
    """What a float is whose value is asked for: nan, and a warning, once for each simulated GPU, says so; 0.0 on one
    that has stand-ins."""
    machine = machines.on()
    if machine.stand_ins is not None:
        return stand_in_numbers.given(machine.stand_ins, "item()", 0.0)
    machine.left_out.say(
        "nan", "simulated tensors have no values: item(), float() and formatting give nan on the simulated GPU"
    )
    return float("nan")


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a simulated tensor, on the CPU, not to be written to; None if they are not known."""
    place = residence.find(tensor.untyped_storage())
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
    """The values of a tensor from which an operator reads a size: integers on the CPU.

    If they are not known, a simulated GPU with stand-ins gives `least` for each, the smallest value that makes sense,
    and notes that `operator` decides a size. Raises NoValueError, which says `unknown`, on one without stand-ins.
    """
    known = tensor if residence.of(tensor) is None else of(tensor)
    if known is not None:
        return known
    stand_ins = machines.on().stand_ins
    if stand_ins is None:
        raise NoValueError(unknown)
    stand_ins.note(operator).decides_size()
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return torch.full(tensor.shape, least, dtype=tensor.dtype, device="cpu")


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """What has no elements has no values that could be unknown."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _in_buffer(buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        return buffer.under(tensor)


def keep(tensor: torch.Tensor, known: torch.Tensor) -> None:
    """Notes the values of a simulated tensor that fills its storage."""
    place = residence.find(tensor.untyped_storage())
    if place is not None and place.nbytes == tensor.nbytes:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            place.values = _result(_converted, (known.clone(),), tensor, place)


def carry(source: torch.Tensor, copy: torch.Tensor) -> None:
    """Takes values along where a tensor is copied from the host to the GPU or back."""
    place = residence.find(copy.untyped_storage())
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
    """Copies what a tensor has of values, where all are kept."""
    memory = place.machine.host_memory
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        known = of(source) if source.is_meta else source
        if known is None:
            return
        if place.values is None:
            place.values = buffers.zeros(place.nbytes, memory)
        place.values.under(copy).copy_(known)


def _converted(source: torch.Tensor) -> torch.Tensor:
    return source


def _result(function, args, tensor, place) -> Expression:
    """The expression of the only result of a function, a tensor that lies in `place`."""
    where = view(Expression(place.nbytes), tensor)
    return Expression(place.nbytes, call=Call(function, args, {}, outputs={0: where}), slot=0)


class _Written(NamedTuple):
    """Position and name of the arguments that an operator writes. `in_training`: only where it is called for that."""

    arguments: tuple[tuple[int, str], ...]
    in_training: bool = False


@once_for_each
def _written(operator) -> _Written:
    declared = list(enumerate(operator._schema.arguments))
    if operator in (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default):  # their schemas do not say so
        return _Written(tuple((i, one.name) for i, one in declared if one.name.startswith("running_")), True)
    told = [(i, one.name) for i, one in declared if one.alias_info is not None and one.alias_info.is_write]
    return _Written(tuple(told))


@once_for_each
def _outs(operator) -> tuple[str, ...]:
    """The names of the arguments that an operator writes all of its results to: out=."""
    told = (one for one in operator._schema.arguments if one.kwarg_only and one.alias_info is not None)
    return tuple(one.name for one in told if one.alias_info.is_write)


@once_for_each
def _gives_values(operator) -> bool:
    """Whether its result follows from its arguments: it draws nothing at random and fills what it makes."""
    drawn = torch.Tag.nondeterministic_seeded in operator.tags
    return not drawn and not any(part in operator._schema.name for part in _ALLOCATING)


def computed(operator, args, kwargs):
    """What an operator gives on the CPU for simulated tensors whose values are known. Raises UnknownError if one's are
    not, or if the result does not follow from them."""
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
    """What is found out about an operator once, for `follow`."""

    def __init__(self, operator):
        self.writes = bool(_written(operator).arguments)
        self.outs = _outs(operator)
        self.gives_values = _gives_values(operator)
        self.overwrites = operator in _OVERWRITING
        self.decided = operator in _DECIDED_BY
        self.moves = operator._schema.name in ("aten::set_", "aten::resize_")


_plan_of = once_for_each(_Plan)


def follow(operator, args, kwargs, outputs) -> None:
    """After an operator has run on simulated tensors: notes what it gives, or forgets what it wrote to."""
    plan = _plan_of(operator)
    if plan.moves:
        return  # the tensor is one of another storage now, where nothing was written; one that grew has forgotten all
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
        others = [_operand(one) for one in args[1:]]  # before the first, whose blank bytes may not be wanted then
        given = (*(_operand(one, plan.overwrites) for one in args[:1]), *others)
    except UnknownError:
        for place in written:
            place.values = None
        if plan.decided and _decided(operator, args, outputs[0].dtype):
            keep(outputs[0], torch.full(outputs[0].shape, _DECIDED_BY[operator], dtype=outputs[0].dtype, device="cpu"))
        return
    _note(operator, given, named, written, outputs)


def _any_small(outputs) -> bool:
    for one in outputs:  # noqa: SIM110  # a generator takes twice as long, at every operator
        if isinstance(one, torch.Tensor) and one.numel() <= LIMIT:
            return True
    return False


def _decided(operator, args, dtype) -> bool:
    """Whether one of two operands, of which the other is not known, decides the result: `True or x`, `0 and x`."""
    wanted = _DECIDED_BY[operator]
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
    """Gives the storages of a call's results, and those that it wrote to, their expressions."""
    before = [(place, place.values) for place in written if place.values is not None]
    if operator in _OVERWRITING:
        before = [(written[0], given[0].of)]
    elif _outs(operator):
        given_to = [named[name].of for name in _outs(operator)]
        outs = written[-len(given_to) :]  # the last ones: `out` of batch norm comes after the running statistics
        before = [*before, *((a, b) for a, b in zip(outs, given_to, strict=True) if a.values is None)]
    new = {}
    cut = torch.Tag.dynamic_output_shape in operator.tags  # its results may be cut from what is longer: torch.unique
    for number, output in enumerate(outputs):
        place = residence.find(output.untyped_storage()) if isinstance(output, torch.Tensor) else None
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
    """The residences of the tensors that a call writes to."""
    places = []
    written = _written(operator)
    if written.in_training and not arguments.given(operator, "training", args, kwargs):
        return places
    for position, name in written.arguments:
        argument = args[position] if position < len(args) else kwargs.get(name)
        for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(tensor, torch.Tensor):
                place = residence.find(tensor.untyped_storage())
                if place is not None:
                    places.append(place)
    return places


def _operand(argument, blank: bool = False):
    """An argument as a `Call` keeps it. `blank`: the call writes over all of it."""
    if isinstance(argument, torch.Tensor):
        if argument.numel() > LIMIT:
            raise UnknownError
        if not argument.is_meta:
            return _from_host(argument)
        place = residence.find(argument.untyped_storage())
        if place is None:
            raise UnknownError
        whole = place.nbytes == argument.nbytes and is_dense(argument)
        if (blank and whole) or not argument.numel():  # nothing of it is asked for
            return view(Expression.blank(place.nbytes), argument)
        if place.values is None:
            raise UnknownError
        return view(place.values, argument)
    if isinstance(argument, (list, tuple)):
        return [_operand(item) for item in argument]
    return argument


def _from_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of the host, which its owner may change."""
    if tensor.layout is not torch.strided or (tensor.is_floating_point() and tensor.numel() > FLOATS):
        raise UnknownError
    return tensor.detach().clone()
