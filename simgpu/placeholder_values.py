"""Placeholder values: the zeros and numbers that a program receives when a simulated tensor has no values."""

import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from simgpu import uses
from simgpu.errors import NoValueError
from simgpu.tracebacks import PATHS
from simgpu.unmodeled import users_line

# Placeholder values: the zeros that a program receives when a simulated tensor has no values, and what they decide.
# A simulated GPU provides them only if `Machine.placeholder_values` is set, as `simgpu run` does. Otherwise reading
# an unknown value raises an error.
# Most placeholder values do not affect memory: a loss that is printed, a norm that is logged. Others do, so each line
# that read one records what it decided (`PlaceholderLine.sizes`, `PlaceholderLine.branches`):
# - An operator whose result has a size that depends on values (nonzero, a mask, unique, torchvision's nms) decides a
#   size. With zeros as its arguments nothing is selected, which is the smallest possible result.
# - A number that Python reads is an `Int` or a `Float` (below). It remembers its line through arithmetic,
#   and when PyTorch receives it, the function mode finds out whether a shape depends on it
#   (`dispatch/unknown_sizes.py`).
# - A number that Python converts to an exact int, or uses as the end of a range, cannot be tracked in this way.
#   Instead, `uses` analyses the source of the line that reads it.
# - A truth value, or a comparison with such a number, decides which way the program continues.
# A number that is passed to NumPy, or stored and read again from a file, is not tracked.

IN_A_ROW = 5000  # truth values read at one line and nowhere else: a loop that waits for a different answer

ARRAYS = ("numpy()", "array()", "tolist()", "copy_()")


@dataclass(eq=False)
class PlaceholderLine:
    """Records the placeholder values of one line: what read them, how often, and what they decided.

    `sizes` says whether one decided the size of a tensor, and `at_least` whether all of those sizes are the smallest
    possible. `branches` says whether one decided which way the program continues.
    """

    what: str
    file: str
    line: int
    count: int = 0
    sizes: bool = False
    at_least: bool = True
    branches: bool = False

    def decides_size(self, at_least: bool = True) -> None:
        """Records that a size depends on it. `at_least` says whether the true size can only be larger."""
        self.sizes = True
        self.at_least = self.at_least and at_least

    @property
    def place(self) -> str:
        """Returns the place as text: "train.py:12"."""
        return f"{self.file}:{self.line}"


class PlaceholderValues:
    """Holds the placeholder values of a run, by what was read and the line that read it.

    `numbers` says whether Python received a number that has to be tracked. `escaped` is called when the program
    receives an array, a list or a host tensor in place of unknown values.
    """

    def __init__(self):
        self._of: dict[tuple[str, str, int], PlaceholderLine] = {}
        self._last: tuple[tuple, int] = ((), 0)  # what was read last, and how many times in a row
        self.numbers = False
        self.escaped: Callable[[], None] | None = None

    def note(self, what: str) -> PlaceholderLine:
        """Counts one more placeholder value for a read such as "item()", and returns the record of its line.

        Raises NoValueError if a loop waits for a truth value other than the one that it receives, 0.
        """
        if self.escaped is not None and what in ARRAYS:
            self.escaped()
        key = what, *users_line()
        found = self._of.setdefault(key, PlaceholderLine(*key))
        found.count += 1
        before, times = self._last
        self._last = key, times + 1 if key == before else 1
        if self._last[1] >= IN_A_ROW and what in ("bool()", "is_nonzero()"):
            raise NoValueError(
                f"{what} was answered {IN_A_ROW} times in a row at {found.place}, each time as if the value was 0: "
                "a loop seems to wait for a different value. With values=True (--values) tensors have values"
            )
        return found

    def __iter__(self):
        """Yields the records, most frequent first."""
        return iter(sorted(self._of.values(), key=lambda one: -one.count))

    def __bool__(self) -> bool:
        return bool(self._of)

    def decide_sizes(self) -> bool:
        """Returns whether a size depends on one of them."""
        return any(one.sizes for one in self._of.values())


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns zeros on the host, with a simulated tensor's shape and dtype."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


# Numbers that a program read from tensors without values: an int and a float that remember which line read them.
# They are subclasses of int and float, so they print, format, compare, hash and convert to NumPy like those.
# Arithmetic keeps the lines of both operands. A pickle and a copy are plain numbers. Python converts them to an exact
# int in `int()`, `range()` and `operator.index()`, and from there on they cannot be tracked: `int()` reports that to
# `uses`, but the others call no method.

_LIBRARY = sysconfig.get_paths()["stdlib"]


class Int(int):
    """An int that depends on the placeholder values of the lines `of`."""

    of: tuple[PlaceholderLine, ...] = ()

    def __reduce__(self):
        return int, (plain(self),)

    def __int__(self):
        became_exact(self.of, sys._getframe(1))
        return plain(self)

    __hash__ = int.__hash__


class Float(float):
    """A float that depends on the placeholder values of the lines `of`."""

    of: tuple[PlaceholderLine, ...] = ()

    def __reduce__(self):
        return float, (plain(self),)

    def __int__(self):
        became_exact(self.of, sys._getframe(1))
        return float.__int__(self)

    __hash__ = float.__hash__


def plain(number):
    """Converts to an exact int or float of the same value; returns any other object unchanged."""
    if isinstance(number, Int):
        return int.__index__(number)
    return float.__float__(number) if isinstance(number, Float) else number


def of(number) -> tuple[PlaceholderLine, ...]:
    """Returns the lines whose placeholder values a number depends on; () for any other object."""
    return number.of if type(number) in (Int, Float) else ()


def depending(value, lines: tuple[PlaceholderLine, ...]) -> Any:
    """Returns an int or a float (or several in a tuple or list) as depending on `lines`.

    A bool is returned as it is, and marks that the lines decide a branch.
    """
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


def given(placeholder_values: PlaceholderValues, what: str, value) -> Any:
    """Returns a placeholder value as the program receives it, and counts it for `what` and the line that reads it."""
    line = placeholder_values.note(what)
    if type(value) in (int, float, list):
        placeholder_values.numbers = True
        use = uses.of_result(_asking())
        if use is uses.SIZE or (use is uses.LOST and type(value) is int):
            line.decides_size()
    return depending(value, (line,))


def exact(number, index: bool = False):
    """Returns the exact number of one that Python is about to make exact, for `int()`, `float()` or an index."""
    if isinstance(number, Int):
        frame = _asking()
        if index and uses.chooses(frame):
            return plain(number)
        became_exact(number.of, frame)
    return plain(number)


def _asking():
    """Returns the frame that reads a value, which may be in PyTorch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PATHS):
        frame = frame.f_back
    return frame


def became_exact(lines: tuple[PlaceholderLine, ...], frame) -> None:
    """Records that `frame` made an exact int: it decides a size unless the source shows that it does not."""
    if uses.of_result(frame) not in (uses.BRANCH, uses.HARMLESS):
        for line in lines:
            line.decides_size()


def _of_the_standard_library(file: str) -> bool:
    return file.startswith(_LIBRARY) and "site-packages" not in file


def _lines_of(numbers) -> tuple[PlaceholderLine, ...]:
    return tuple(dict.fromkeys(line for number in numbers for line in of(number)))


def _following(kind: type, name: str):
    """Returns a method of int or float whose result depends on the lines of its operands."""
    method = getattr(kind, name)

    def follow(self, *others):
        value = method(self, *others)
        if value is NotImplemented:  # an int with a float, because the float's own method would lose the lines
            other = others[0] if others else None
            if not (kind is int and isinstance(other, float) and hasattr(float, name)):
                return value
            value = getattr(float, name)(float(plain(self)), other)
        if type(value) is bool and _of_the_standard_library(sys._getframe(1).f_code.co_filename):
            return value  # for example, json tests whether a number is NaN
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
