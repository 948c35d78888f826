"""Integers whose values are known, because nothing random and no floating point went into them.

A simulated tensor has no values; but of masks and positions models ask what decides which operators run: does this
mask let everything through? Boolean and integer tensors of up to LIMIT elements that come from the host, or are made
by `ones`, `arange` and the like, keep their values beside the simulated storage, on the host. An operator on such
tensors alone is computed there too, so that the answer is that of a real GPU. All other values stay unknown: what
depends on one is unknown as well, and asking for it is an error.
"""

from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu import machine as machines
from simgpu.tensors import residence

LIMIT = 2**20  # elements; larger masks would cost the simulation more time than they decide


class UnknownError(Exception):
    """An operand whose values are not known."""


def nan() -> float:
    """What a float is whose value is asked for; a warning, once for each simulated GPU, says so."""
    machines.on().left_out.say(
        "nan", "simulated tensors have no values: item(), float() and formatting give nan on the simulated GPU"
    )
    return float("nan")


def may_be_known(tensor) -> bool:
    """Whether a tensor is of the kind that is followed: integers or booleans, and not too many."""
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex) and tensor.numel() <= LIMIT


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a simulated tensor, on the CPU, sharing memory with those of its views; None if not known."""
    place = residence.find(tensor.untyped_storage())
    if place is None or place.values is None or not may_be_known(tensor):
        return None
    return _seen_as(place.values, tensor)


def _seen_as(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return values.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def keep(tensor: torch.Tensor, known: torch.Tensor) -> None:
    """Notes the values of a new simulated tensor, one that fills its storage."""
    place = residence.find(tensor.untyped_storage())
    if place is not None and place.values is None and place.nbytes == tensor.nbytes:
        values = torch.empty(place.nbytes, dtype=torch.uint8)
        _seen_as(values, tensor).copy_(known)
        place.values = values


def carry(source: torch.Tensor, copy: torch.Tensor) -> None:
    """Takes values along where a tensor is copied from the host to the GPU or back."""
    if may_be_known(copy):
        known = of(source) if source.is_meta else source
        if known is not None:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                keep(copy, known)


@cache
def _written(operator) -> tuple[int, ...]:
    """Positions of the arguments that an operator writes."""
    arguments = operator._schema.arguments
    return tuple(i for i, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write)


@cache
def _gives_values(operator) -> bool:
    """Whether its result follows from its arguments: it draws nothing at random and fills what it makes."""
    drawn = torch.Tag.nondeterministic_seeded in operator.tags
    return not drawn and "empty" not in operator.name() and "resize" not in operator.name()


def follow(operator, args, kwargs, outputs) -> None:
    """After an operator has run on simulated tensors: computes its integers, or forgets those it wrote."""
    if operator._schema.name == "aten::set_":
        return  # the tensor is one of another storage now, where nothing was written
    written = _written(operator)
    result = outputs[0] if outputs else None
    if not written and not (isinstance(result, torch.Tensor) and may_be_known(result)):
        return
    try:
        if not _gives_values(operator):
            raise UnknownError
        given = [_known(argument) for argument in args]
        named = {name: _known(argument) for name, argument in kwargs.items() if name != "device"}
        found = operator(*given, **named)
    except (UnknownError, NotImplementedError, RuntimeError):
        for position in written:
            if position < len(args):
                _forget(args[position])
        return
    if not written:
        for output, known in zip(outputs, found if isinstance(found, (list, tuple)) else [found], strict=False):
            if isinstance(output, torch.Tensor) and isinstance(known, torch.Tensor) and may_be_known(output):
                keep(output, known)


def _known(argument):
    if isinstance(argument, torch.Tensor):
        known = argument if not argument.is_meta else of(argument)
        if known is None:
            raise UnknownError
        return known
    if isinstance(argument, (list, tuple)):
        return [_known(item) for item in argument]
    return argument


def _forget(argument) -> None:
    for tensor in argument if isinstance(argument, (list, tuple)) else (argument,):
        place = residence.find(tensor.untyped_storage()) if isinstance(tensor, torch.Tensor) else None
        if place is not None:
            place.values = None
