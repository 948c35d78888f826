"""Formats bytes as text. MiB is 2**20 bytes everywhere in the course."""

from __future__ import annotations

from fractions import Fraction
from numbers import Real
from typing import Any

__all__ = ["MiB", "mib", "whole_bytes"]

MiB = 2**20


class Size(str):
    """A size as text, which a notebook shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def whole_bytes(n: Any) -> int:
    """Converts ``n`` to ``int``; raises ``TypeError`` or ``ValueError`` if it is not a whole number of bytes."""
    if isinstance(n, bool) or not (
        issubclass(type(n), Real) or hasattr(n, "__int__")
    ):  # Fraction.__int__ came with 3.11
        raise TypeError(f"a size in bytes is a whole number, not {n!r} ({type(n).__name__})")
    if n != n or n in (float("inf"), float("-inf")) or int(n) != n:
        raise ValueError(f"a size in bytes is a whole number, not {n!r}; divide bytes with //, not /")
    return int(n)


def digits(n: int, places: int = 1, sign: bool = False) -> str:
    """Formats ``n`` bytes in MiB without the unit: every digit, and at least ``places`` decimals.

    A byte is 2**-20 MiB, so the decimals always end; a multiple of 512 B has at most 11.
    """
    n = whole_bytes(n)
    whole, rest = divmod(abs(n), MiB)
    decimals = f"{rest * 5**20:020d}".rstrip("0").ljust(places, "0")  # rest / 2**20 == rest * 5**20 / 10**20
    return f"{'-' if n < 0 else '+' if sign else ''}{whole}.{decimals}"


def mib(n: int, places: int = 1, sign: bool = False, exact: bool = False) -> Size:
    """Formats ``n`` bytes in MiB with at most three decimals, or in bytes if those would hide the value.

    >>> mib(4 * 10_240 * 4096)
    160.0 MiB
    >>> mib(8_519_680, sign=True)
    +8.125 MiB
    >>> mib(168 * 2**20 + 512)   # rounded: three decimals, zeros too
    168.000 MiB
    >>> mib(512)                 # below 0.1 MiB
    512 B
    >>> mib(168 * 2**20 + 512, exact=True)
    168.00048828125 MiB

    ``places`` is the least number of decimals. ``exact`` drops none. Raises ``TypeError`` or ``ValueError`` if ``n`` is
    not a whole number.
    """
    n = whole_bytes(n)
    if exact or n * 1000 % MiB == 0:
        return Size(f"{digits(n, places, sign)} MiB")
    if abs(n) * 10 < MiB:
        return Size(f"{n:{'+' if sign else ''},} B")
    return Size(f"{n / MiB:{'+' if sign else ''}.3f} MiB")


def parse(text: str) -> int:
    """Returns the bytes of a size such as ``"168.125"`` or ``"168.125 MiB"``; the inverse of an exact :func:`mib`.

    Raises ``ValueError`` for any other unit, or for a figure that is not a whole number of bytes.
    """
    number, _, unit = text.strip().partition(" ")
    if unit not in ("", "MiB"):
        raise ValueError(f"wanted a number of MiB such as '168.125 MiB', was given {text!r}")
    return whole_bytes(Fraction(number) * MiB)


def verdict(measured: int, expected: int) -> str:
    """Compares ``measured`` with ``expected`` bytes: returns ``"equal"``, or the signed difference with its unit.

    The difference is never rounded to zero; below 0.1 MiB it is given in bytes.
    """
    difference = whole_bytes(measured) - whole_bytes(expected)
    return "equal" if difference == 0 else mib(difference, sign=True)
