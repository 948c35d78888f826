"""Finds an operator's argument by its name in the schema, whether it was passed by position, by keyword, or not at
all.
"""

import sys

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
