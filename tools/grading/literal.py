"""A plain value as Python's text for it: how an answer goes from the process that made it to the one that judges it."""

from __future__ import annotations

import ast
import json
import types
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

PLAIN, FUNCTION, OTHER, MISSING = "plain", "function", "other", "missing"


class NotPlain(TypeError):
    """A value that is neither a number, a text, a truth value, None or three dots, nor made of these."""


def text(value: Any) -> str:
    """The text of a number, a text, True, False, None, three dots, or of a list, tuple, set or dictionary of these.

    A number of NumPy or of a tensor with one element is written as Python's. Raises NotPlain for anything else.
    """
    if value is None or value is Ellipsis or isinstance(value, bool):
        return repr(value) if value is not Ellipsis else "..."
    if isinstance(value, str):
        return repr(str(value))
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _together(value)
    if hasattr(value, "item") and not isinstance(value, type):
        try:
            value = value.item()
        except Exception:
            raise NotPlain(type(value).__name__) from None
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Fraction) and value.denominator == 1:
        return repr(value.numerator)
    if isinstance(value, Real):
        return repr(float(value)).replace("inf", "1e999")
    raise NotPlain(type(value).__name__)


def _together(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)}: {text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(map(text, value)) + "}" if value else "set()"
    parts = ", ".join(map(text, value))
    if isinstance(value, list):
        return f"[{parts}]"
    return f"({parts},)" if len(value) == 1 else f"({parts})"


def is_literal(given: str) -> bool:
    """Whether a text is nothing but a plain value: no name, no call."""
    try:
        ast.literal_eval(given)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def told(namespace: dict[str, Any], names: list[str]) -> str:
    """What each of the names stands for in a namespace, as JSON: {name: [kind, text of the value or its type]}."""
    return json.dumps({name: _kind(namespace, name) for name in names})


def _kind(namespace: dict[str, Any], name: str) -> tuple[str, str]:
    if name not in namespace:
        return MISSING, ""
    value = namespace[name]
    if isinstance(value, types.FunctionType):
        return FUNCTION, "function"
    try:
        return PLAIN, text(value)
    except (NotPlain, RecursionError):
        return OTHER, type(value).__name__
