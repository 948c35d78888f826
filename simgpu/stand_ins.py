"""Stand-ins: the values that a program gets where a simulated tensor has none, and what they decide. All are zeros.

A simulated GPU has stand-ins only if it is given some (`Machine.stand_ins`), as `simgpu run` does. Otherwise a question
for a value that is not known raises an error.

Most stand-ins decide nothing about memory: a loss that is printed, a norm that is logged. Others do, so each line that
got one says what its stand-ins decided (`StandIn.sizes`, `StandIn.branches`):

- An operator whose result has a size that depends on values (nonzero, a mask, unique, torchvision's nms) decides a
  size. With zeros in place of its arguments nothing is selected, which is the smallest result that there can be.
- A number that Python reads is an `Int` or a `Float` (`stand_in_numbers`). It remembers its line through arithmetic,
  and where PyTorch receives it, the function mode finds out whether a shape depends on it (`modes/size_probe.py`).
- What Python makes an exact int of, or uses as the end of a range, cannot be followed in this way. The source of the
  line that reads it is looked at instead (`uses`).
- A truth value, or a comparison with such a number, decides which way the program continues.

A number that is handed to NumPy, or stored and read again from a file, is not followed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from simgpu.errors import NoValueError
from simgpu.left_out import users_line

IN_A_ROW = 5000  # stand-ins for a truth value at one line, and none elsewhere: a loop that waits for another answer

ARRAYS = ("numpy()", "array()", "tolist()", "copy_()")


@dataclass(eq=False)
class StandIn:
    """The stand-ins of one line: what asked for them, how often, and what they decided.

    `sizes`: whether one decided the size of a tensor. `at_least`: whether all of those sizes are the smallest ones that
    there can be. `branches`: whether one decided which way the program continues.
    """

    what: str
    file: str
    line: int
    count: int = 0
    sizes: bool = False
    at_least: bool = True
    branches: bool = False

    def decides_size(self, at_least: bool = True) -> None:
        """Notes that a size depends on it. `at_least`: whether the true one can only be larger."""
        self.sizes = True
        self.at_least = self.at_least and at_least

    @property
    def place(self) -> str:
        """ "train.py:12"."""
        return f"{self.file}:{self.line}"


class StandIns:
    """The stand-ins of a run, by what was asked and the line that asked.

    `numbers`: whether Python received a number that has to be followed. `escaped`: called when the program gets an
    array, a list or a tensor of the host in place of unknown values.
    """

    def __init__(self):
        self._of: dict[tuple[str, str, int], StandIn] = {}
        self._last: tuple[tuple, int] = ((), 0)  # what was asked for last, and how many times in a row
        self.numbers = False
        self.escaped: Callable[[], None] | None = None

    def note(self, what: str) -> StandIn:
        """Counts one more stand-in for what is asked now ("item()"), and returns the record of its line.

        Raises NoValueError where a loop waits for another truth value than the one that it gets, 0.
        """
        if self.escaped is not None and what in ARRAYS:
            self.escaped()
        key = what, *users_line()
        found = self._of.setdefault(key, StandIn(*key))
        found.count += 1
        before, times = self._last
        self._last = key, times + 1 if key == before else 1
        if self._last[1] >= IN_A_ROW and what in ("bool()", "is_nonzero()"):
            raise NoValueError(
                f"{what} was answered {IN_A_ROW} times in a row at {found.place}, each time as if the value was 0: "
                "a loop seems to wait for another one. With values=True (--values) tensors have values"
            )
        return found

    def __iter__(self):
        """The records, most frequent first."""
        return iter(sorted(self._of.values(), key=lambda one: -one.count))

    def __bool__(self) -> bool:
        return bool(self._of)


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on the host of a simulated tensor's shape and dtype."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
