"""Finds an operator's argument by its name in the schema, and the tensors among arguments and results."""

import sys
from collections.abc import Iterable, Iterator

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


def tensors_in(arguments: Iterable) -> Iterator[torch.Tensor]:
    """Yields the tensors among arguments, including those in lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


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
