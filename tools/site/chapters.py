"""The chapters, found in the folder of notebooks, and the parts that they make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools import minutes

# The last number of each part, and the part's name.
PARTS = {
    0: "Before you begin",
    2: "Part I · How memory is handed out",
    8: "Part II · What training stores",
    17: "Part III · Saving memory, and time",
    22: "Part IV · Many GPUs",
    99: "Part V · Your own model",
}


@dataclass(frozen=True)
class Chapter:
    """A notebook of the course.

    `key`: "03", or "03b" for a second lesson. `title`: its heading, "03 · Where did 360 MiB go?". `minutes`: as it
    claims, or as computed where it claims none.
    """

    path: Path
    key: str
    title: str
    minutes: int

    @property
    def number(self) -> int:
        return int(self.key[:2])

    @property
    def second(self) -> bool:
        """Whether it is a second lesson, which a reader may skip."""
        return not self.key.isdigit()

    @property
    def part(self) -> str:
        return next(name for last, name in PARTS.items() if self.number <= last)


def find(folder: Path) -> list[Chapter]:
    """The chapters of a folder, in order. Raises ValueError for a notebook that has no heading."""
    return [_read(path) for path in sorted(folder.glob("[0-9][0-9]*.ipynb"))]


def _read(path: Path) -> Chapter:
    notebook = nbformat.read(path, as_version=4)
    title = re.match(r"# (.+)", notebook.cells[0].source) if notebook.cells else None
    if title is None:
        raise ValueError(f"{path.name} does not begin with a heading, '# {minutes.key(path)} · a question?'")
    takes = minutes.claimed(notebook) or round(minutes.computed(notebook))
    return Chapter(path, minutes.key(path), title[1], takes)
