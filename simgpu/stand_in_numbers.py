"""Numbers that a program read where there was no value: an int and a float that remember which line read them.

They are subclasses of int and float, so that they print, format, compare, hash and go to NumPy as those do. Arithmetic
keeps the lines of both operands; a pickle and a copy are plain numbers. Python makes an exact int of them in `int()`,
`range()` and `operator.index()`, which ends what can be followed: `int()` says so to `uses`, the others do not ask.
"""

import sys
import sysconfig
from typing import Any

from simgpu import uses
from simgpu.stand_ins import StandIn, StandIns
from simgpu.tracebacks import PATHS

_LIBRARY = sysconfig.get_paths()["stdlib"]


class Int(int):
    """An int that depends on the stand-ins of some lines: `of`."""

    of: tuple[StandIn, ...] = ()

    def __reduce__(self):
        return int, (plain(self),)

    def __int__(self):
        became_exact(self.of, sys._getframe(1))
        return plain(self)

    __hash__ = int.__hash__


class Float(float):
    """The same for a float."""

    of: tuple[StandIn, ...] = ()

    def __reduce__(self):
        return float, (plain(self),)

    def __int__(self):
        became_exact(self.of, sys._getframe(1))
        return float.__int__(self)

    __hash__ = float.__hash__


def plain(number):
    """An exact int or float of the same value; anything else is itself."""
    if isinstance(number, Int):
        return int.__index__(number)
    return float.__float__(number) if isinstance(number, Float) else number


def of(number) -> tuple[StandIn, ...]:
    """The lines whose stand-ins a number depends on; none for any other object."""
    return number.of if type(number) in (Int, Float) else ()


def depending(value, lines: tuple[StandIn, ...]) -> Any:
    """An int or a float, or several in a tuple or a list, as depending on `lines`. A truth value decides a branch."""
    kind = type(value)
    if kind is bool:
        for line in lines:
            line.branches = True
        return value
    if kind is int or kind is float:
        made = (Int if kind is int else Float)(value)
        made.of = lines
        return made
    if kind is tuple or kind is list:
        return kind(depending(one, lines) for one in value)
    return value


def given(stand_ins: StandIns, what: str, value) -> Any:
    """A stand-in's value as the program gets it, which is counted: for `what`, asked for by the line that runs."""
    line = stand_ins.note(what)
    if type(value) in (int, float, list):
        stand_ins.numbers = True
        use = uses.of_result(_asking())
        if use is uses.SIZE or (use is uses.LOST and type(value) is int):
            line.decides_size()
    return depending(value, (line,))


def exact(number, index: bool = False):
    """An exact number of one that Python would make exact anyway, because `int()`, `float()` or an index asks."""
    if isinstance(number, Int):
        frame = _asking()
        if index and uses.chooses(frame):
            return plain(number)
        became_exact(number.of, frame)
    return plain(number)


def _asking():
    """The frame that asks for a value, be it PyTorch's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PATHS):
        frame = frame.f_back
    return frame


def became_exact(lines: tuple[StandIn, ...], frame) -> None:
    """An exact int was made of a number in `frame`: it decides a size unless the source shows that it does not."""
    if uses.of_result(frame) not in (uses.BRANCH, uses.HARMLESS):
        for line in lines:
            line.decides_size()


def _of_the_standard_library(file: str) -> bool:
    return file.startswith(_LIBRARY) and "site-packages" not in file


def _lines_of(numbers) -> tuple[StandIn, ...]:
    return tuple(dict.fromkeys(line for number in numbers for line in of(number)))


def _following(kind: type, name: str):
    """A method of int or float whose result depends on the lines of its operands."""
    method = getattr(kind, name)

    def follow(self, *others):
        value = method(self, *others)
        if value is NotImplemented:  # an int with a float, for which the float's own method would forget the lines
            other = others[0] if others else None
            if not (kind is int and isinstance(other, float) and hasattr(float, name)):
                return value
            value = getattr(float, name)(float(plain(self)), other)
        if type(value) is bool and _of_the_standard_library(sys._getframe(1).f_code.co_filename):
            return value  # json, for one, asks whether a number is NaN
        return depending(value, _lines_of((self, *others)))

    follow.__name__ = follow.__qualname__ = name
    return follow


_OF_BOTH = "add sub mul truediv floordiv mod divmod pow"
_OF_INT = "and or xor lshift rshift"
_OF_ONE = "neg pos abs round trunc floor ceil bool lt le eq ne gt ge"
for _kind, _base, _names in ((Int, int, f"{_OF_BOTH} {_OF_INT}"), (Float, float, _OF_BOTH)):
    for _name in [*_names.split(), *(f"r{one}" for one in _names.split()), *_OF_ONE.split()]:
        if hasattr(_base, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _following(_base, f"__{_name}__"))
Int.__invert__ = _following(int, "__invert__")
