"""Finds an operator's argument by its name in the schema, and the tensors among arguments and results."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from simgpu.op_info.per_op_cache import per_op_cache


@per_op_cache
def _places(operator) -> dict:
    """Returns (position, default) of each argument by name; a keyword-only one has the largest integer as position."""
    return {
        argument.name: (sys.maxsize if argument.kwarg_only else position, argument.default_value)
        for position, argument in enumerate(operator._schema.arguments)
    }


def has(operator, name: str) -> bool:
    """Returns whether the schema of an OpOverload has an argument of this name."""
    return name in _places(operator)


def given(operator, name: str, args: tuple, kwargs: dict):
    """Returns the argument `name` of a call of an OpOverload, or its default if it was omitted.

    Raises KeyError if the operator has no such argument.
    """
    position, default = _places(operator)[name]
    if position < len(args):
        return args[position]
    return kwargs.get(name, default)


def first(operator, args: tuple, kwargs: dict):
    """Returns the first argument of a call of an OpOverload, whatever its name."""
    return args[0] if args else kwargs[operator._schema.arguments[0].name]


class Arguments:
    """The arguments of one call of an OpOverload, by name.

    `call["dropout_p"]` is the argument of that name in the operator's schema, however it was passed, or the schema's
    default. `call["query", "key"]` are several. Raises KeyError for a name that is not in the schema.
    """

    __slots__ = ("operator", "args", "kwargs")

    def __init__(self, operator, args: tuple, kwargs: dict):
        self.operator, self.args, self.kwargs = operator, args, kwargs

    def __getitem__(self, names: str | tuple[str, ...]) -> Any:
        if isinstance(names, str):
            return given(self.operator, names, self.args, self.kwargs)
        return tuple(given(self.operator, name, self.args, self.kwargs) for name in names)


_NO_TENSORS = frozenset({type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size})


def tensors_in(arguments: Iterable) -> list[torch.Tensor]:
    """Returns the tensors among arguments, including those in lists."""
    tensors = []
    for argument in arguments:
        kind = argument.__class__
        if kind is torch.Tensor:
            tensors.append(argument)
        elif kind in _NO_TENSORS:  # isinstance() of torch.Tensor is slow for other objects
            continue
        elif isinstance(argument, (list, tuple)):
            tensors += tensors_in(argument)
        elif isinstance(argument, torch.Tensor):
            tensors.append(argument)
    return tensors


def results_in(result) -> Iterator:
    """Yields an operator's results one by one, with lists flattened and None kept."""
    if isinstance(result, (list, tuple)):
        for one in result:
            yield from results_in(one)
    else:
        yield result


def outputs_of(result) -> tuple:
    """Returns an operator's results as a flat tuple."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(results_in(result))
