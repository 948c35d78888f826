"""Lists the attributes that entering a simulated GPU replaces, as one is entered: `simgpu patches`.

For each there is its owner and name, whether the installed torch has it, where it is replaced, and why it may be new. A
build for the CPU lacks most of what C++ adds for CUDA. A name of that kind is known to PyTorch's own Python code and
its stubs (torch/_C/__init__.pyi), which are the same in every build, so one that is not found there either is gone.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from simgpu.patches import Patch, named, recorded
from simgpu.session import simulated_gpu


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
        errors = [] if self.error is None else [f"entering a simulated GPU fails: {self.error}"]
        return [*(str(row) for row in self._unknown), *errors]

    @cached_property
    def _unknown(self) -> list[Row]:
        missing = [row for row in self.rows if not row.exists]
        known = known_to_python({row.name for row in missing if row.new})
        return [row for row in missing if row.name not in known]

    def drift(self) -> str:
        """Returns the lines of `gone`, and how many names were looked up."""
        head = f"torch {torch.__version__} lacks {len(self._unknown)} of {len(self.rows)} replaced attributes"
        return "\n".join([f"{head}{':' if self.gone() else '.'}", *(f"  {line}" for line in self.gone()), ""])

    def __str__(self) -> str:
        missing = sum(not row.exists for row in self.rows)
        head = f"{len(self.rows)} attributes are replaced, of which torch {torch.__version__} lacks {missing}."
        errors = (
            [] if self.error is None else ["", f"Entering a simulated GPU fails, so more are missing: {self.error}"]
        )
        return "\n".join([head, *errors, "", *map(str, self.rows), ""])


def known_to_python(names: set[str]) -> set[str]:
    """Returns those of `names` ("torch._C._cudart") that PyTorch's own Python code or its stubs know.

    A name of torch._C has to be declared in a stub, imported, or used as an attribute of _C. For all others, which C++
    puts into modules of Python, any mention counts.
    """
    left = set(names)
    for path in _files(Path(torch.__file__).parent):
        if not left:
            break
        text = path.read_text(encoding="utf-8", errors="ignore")
        left -= {name for name in left if name.rpartition(".")[2] in text and _knows(text, path, name)}
    return names - left


def _knows(text: str, path: Path, name: str) -> bool:
    owner, _, word = name.rpartition(".")
    if owner != "torch._C":
        return re.search(rf"\b{word}\b", text) is not None
    if path.suffix == ".pyi":
        return re.search(rf"^(def |class )?{word}\b", text, re.MULTILINE) is not None
    return re.search(rf"\b_C\.{word}\b|from torch\._C import (\([^)]*|.*)\b{word}\b", text) is not None


def _files(folder: Path) -> Iterator[Path]:
    """Yields the stubs of torch._C first, which have almost all of its names, and then all Python code."""
    yield from sorted((folder / "_C").rglob("*.pyi"))
    yield from sorted(folder.rglob("*.py"))
