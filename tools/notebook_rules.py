"""Holds the rules that every notebook of the course keeps, and finds which of them a notebook breaks.

    python -m tools.notebook_rules notebooks/03_a_linear_model.ipynb

CONTRIBUTING.md, "A chapter", has them in words and says why.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

import nbformat

MAX_LINES = 25
MAX_BYTES = 1_500_000
COMMENT = re.compile(r"^#\s*(?:NBVAL_|RAISES_EXCEPTION)", re.MULTILINE)
SLIDE_TYPES = {"slide", "subslide", "fragment", "notes", "skip"}
MACHINE_PATH = re.compile(r"/(?:work|root|tmp|var/folders)/|/(?:home|Users)/\w+/|[A-Z]:\\\\?Users")


def problems(path: Path) -> list[str]:
    """What is wrong with the notebook at `path`, a line each; nothing if it keeps every rule."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        *_file(path, notebook),
        *_run_in_order(code),
        *_outputs(code),
        *_size(code),
        *_exercises(notebook.cells),
        *_slides(notebook.cells),
    ]


def code_cells(path: Path) -> tuple[int, int]:
    """The number of code cells of the notebook at `path`, and of those whose output nbval ignores."""
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return len(code), _ignored(code)


def _file(path, notebook):
    if not re.fullmatch(r"\d\d[a-z]?_[a-z0-9_]+\.ipynb", path.name):
        yield f"the file is called {path.name}: wanted NN_topic.ipynb or NNb_topic.ipynb"
    if (kernel := notebook.metadata.get("kernelspec", {}).get("name")) != "python3":
        yield f"the kernel is {kernel!r}: wanted 'python3', which is in every environment"
    text = path.read_text(encoding="utf-8")
    if found := MACHINE_PATH.search(text):
        yield f"a path of one machine: {text[found.start() : found.end() + 30]!r}"
    if (size := path.stat().st_size) > MAX_BYTES:
        yield f"{size} bytes: more than {MAX_BYTES}"


def _run_in_order(code):
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"execution counts {counts}: wanted 1 to {len(code)}, a run from top to bottom"


def _outputs(code):
    for number, cell in enumerate(code, 1):
        if COMMENT.search(cell.source):
            yield f"code cell {number} has a comment for nbval, which readers see: wanted a tag"
        if "nbval-skip" in _tags(cell):
            yield f"code cell {number} is skipped by nbval: a cell must run"
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in _tags(cell):
                yield f"code cell {number} stores an error and is not tagged raises-exception"
            if "image/svg+xml" in output.get("data", {}):
                yield f"code cell {number} stores an SVG, which holds a date: wanted PNG"
    ignored = _ignored(code)
    if ignored > max(1, len(code) // 10):
        yield f"{ignored} of {len(code)} code cells ignore their output: wanted one in ten at most"


def _size(code):
    for number, cell in enumerate(code, 1):
        if not cell.source.strip():
            yield f"code cell {number} is empty"
        if (lines := len(cell.source.splitlines())) > MAX_LINES:
            yield f"code cell {number} has {lines} lines: wanted {MAX_LINES} at most"


def _exercises(cells):
    tags = [tag for cell in cells for tag in _tags(cell) if tag in ("exercise", "solution")]
    parts = [tag for tag, _ in groupby(tags)]
    if parts != ["exercise", "solution"] * (len(parts) // 2):
        yield f"exercises and solutions do not pair: {' '.join(parts)}"
    for number, cell in enumerate((cell for cell in cells if "solution" in _tags(cell)), 1):
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"solution cell {number} is not collapsed (jupyter.source_hidden)"


def _slides(cells):
    kinds = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in cells]
    if unknown := [number for number, kind in enumerate(kinds, 1) if kind not in SLIDE_TYPES]:
        yield f"cells {unknown} have no slideshow.slide_type: nbconvert would show them (wanted e.g. skip)"
    if "slide" not in kinds:
        yield "no cell starts a slide: there is no lecture to show"


def _ignored(code) -> int:
    return sum("nbval-ignore-output" in _tags(cell) for cell in code)


def _tags(cell):
    return cell.metadata.get("tags", [])


if __name__ == "__main__":
    found = [f"{name}: {problem}" for name in sys.argv[1:] for problem in problems(Path(name))]
    print("\n".join(found) or "every rule is kept")
    sys.exit(bool(found))
