"""Placeholder values: the zeros that a program receives when a simulated tensor has no values, and what they decide.

A simulated GPU provides them only if `Machine.placeholder_values` is set, as `simgpu run` does. Otherwise reading an
unknown value raises an error.

Most placeholder values do not affect memory: a loss that is printed, a norm that is logged. Others do, so each line
that read one records what it decided (`PlaceholderLine.sizes`, `PlaceholderLine.branches`):

- An operator whose result has a size that depends on values (nonzero, a mask, unique, torchvision's nms) decides a
  size. With zeros as its arguments nothing is selected, which is the smallest possible result.
- A number that Python reads is an `Int` or a `Float` (`placeholder_numbers`). It remembers its line through arithmetic,
  and when PyTorch receives it, the function mode finds out whether a shape depends on it (`dispatch/size_probe.py`).
- A number that Python converts to an exact int, or uses as the end of a range, cannot be tracked in this way.
  Instead, `uses` analyses the source of the line that reads it.
- A truth value, or a comparison with such a number, decides which way the program continues.

A number that is passed to NumPy, or stored and read again from a file, is not tracked.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from simgpu.errors import NoValueError
from simgpu.unmodeled import users_line

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
