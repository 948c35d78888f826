"""What takes the place of values that do not exist, where a program is to go on without them: zeros, each counted.

A simulated GPU has stand-ins only if it is given some (`Machine.stand_ins`), as `simgpu run` does; else what needs a
value is an error. They are what PyTorch's host code reads from a GPU that computes nothing: zeros.
"""

from collections import Counter
from collections.abc import Callable

import torch

from simgpu.errors import NoValueError
from simgpu.left_out import users_line

IN_A_ROW = 5000  # stand-ins for a truth value at one line, and none elsewhere: a loop that waits for another answer

ARRAYS = ("numpy()", "array()", "tolist()", "copy_()")


class StandIns:
    """How often a value was made up, by what was asked and the line that asked.

    `escaped`: called when the program gets an array, a list or a tensor of the host in the place of unknown values.
    """

    def __init__(self):
        self.counts: Counter = Counter()
        self._last: tuple[tuple, int] = ((), 0)  # what was asked for last, and how many times in a row
        self.escaped: Callable[[], None] | None = None

    def note(self, what: str) -> None:
        """One more stand-in for what is asked now: "item()". Raises NoValueError where a loop waits for another truth
        value than the one that it gets, 0."""
        if self.escaped is not None and what in ARRAYS:
            self.escaped()
        key = what, *users_line()
        self.counts[key] += 1
        before, times = self._last
        self._last = key, times + 1 if key == before else 1
        if self._last[1] >= IN_A_ROW and what in ("bool()", "is_nonzero()"):
            raise NoValueError(
                f"{what} was answered {IN_A_ROW} times in a row at {key[1]}:{key[2]}, each time as if the value was 0: "
                "a loop seems to wait for another one. With values=True (--values) tensors have values"
            )

    def __bool__(self) -> bool:
        return bool(self.counts)


def zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on the host of a simulated tensor's shape and dtype."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
