"""Lists the attributes that entering a simulated GPU replaces, as one is entered: `simgpu patches`.

For each there is its owner and name, whether the installed torch has it, where it is replaced, and why it may be new. A
build for the CPU lacks most of what C++ adds for CUDA, so a name counts as gone only if PyTorch's own Python code does
not know it either (used_names.py).
"""

import traceback
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from simgpu.patches import Patch, named, recorded
from simgpu.session import simulated_gpu
from simgpu.used_names import known_to_python

PACKAGE = Path(__file__).parent


def _place(error: BaseException) -> str:
    """Returns the line of simgpu at which an error was raised, such as "simgpu/session.py:120"."""
    lines = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    path, line = next((path, line) for path, line in reversed(lines) if path.is_relative_to(PACKAGE))
    return f"{path.relative_to(PACKAGE.parent).as_posix()}:{line}"


class Row(NamedTuple):
    """One replaced attribute: its dotted name, whether it exists, where it is replaced, and why it may be new."""

    name: str
    exists: bool
    place: str
    new: str

    def __str__(self) -> str:
        there = "exists" if self.exists else "missing"
        return f"{self.name:<72} {there:<8} {self.place}{f'  ({self.new})' if self.new and not self.exists else ''}"


class Manifest:
    """The attributes that entering a simulated GPU replaces in the installed torch.

    `error` is what entering raised, or None.
    """

    def __init__(self, patches: Iterable[Patch], error: Exception | None = None):
        self.rows = sorted(
            Row(f"{named(one.owner)}.{one.name}", one.exists, one.place, one.new) for one in dict.fromkeys(patches)
        )
        self.error = error

    @classmethod
    def of_entering(cls) -> "Manifest":
        """Returns the manifest of a simulated GPU that is entered for this, and left again."""
        error = None
        with recorded() as found:
            try:
                with simulated_gpu("T4"):
                    pass
            except (AttributeError, ImportError) as raised:
                error = raised
        return cls(found, error)

    def gone(self) -> list[str]:
        """Returns what the installed torch lacks: the missing names that its Python code does not know either, and the
        error of entering.
        """
        errors = [] if self.error is None else [f"entering a simulated GPU fails at {_place(self.error)}: {self.error}"]
        return [*(str(row) for row in self._unknown), *errors]

    @cached_property
    def _unknown(self) -> list[Row]:
        missing = [row for row in self.rows if not row.exists]
        known = known_to_python({row.name for row in missing if row.new})
        return [row for row in missing if row.name not in known]

    def drift(self) -> str:
        """Returns the lines of `gone`, and how many names were looked up."""
        head = f"torch {torch.__version__} lacks {len(self._unknown)} of {len(self.rows)} replaced attributes"
        if self.error is not None:
            head += " that were replaced before an error"
        return "\n".join([f"{head}{':' if self.gone() else '.'}", *(f"  {line}" for line in self.gone()), ""])

    def __str__(self) -> str:
        missing = sum(not row.exists for row in self.rows)
        head = f"{len(self.rows)} attributes are replaced, of which torch {torch.__version__} lacks {missing}."
        errors = (
            [] if self.error is None else ["", f"Entering a simulated GPU fails, so more are missing: {self.error}"]
        )
        return "\n".join([head, *errors, "", *map(str, self.rows), ""])
