"""Computes how long the notebooks take to read, and what can be read in two, four or eight hours.

    python -m tools.minutes                    a table of claims and computed minutes
    python -m tools.minutes --write            docs/syllabi.md anew, from the claims

A minute is 180 words, or 12 lines of code, or 30 lines of output. Exercises, their solutions and a lecturer's notes
are left out: a syllabus gives exercises the time that is left.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAGE = ROOT / "docs" / "syllabi.md"
WORDS, LINES_OF_CODE, LINES_OF_OUTPUT = 180, 12, 30
LONGEST = 30  # minutes of a notebook
CLAIM = re.compile(r"\*\*(\d+) minutes\*\*|\| *time *\| *(\d+) minutes")

# What to read first where time is short: a message, what peaks, three techniques and `simgpu fit`, then the core path.
FIRST = ["00", "03", "10", "23", "01", "05", "09", "11", "07", "08", "12", "02", "13", "14"]
ORDER = [
    *FIRST,
    *("06", "04", "15", "16", "17", "18", "19", "20", "21", "22", "24"),
    *("00b", "02b", "01b", "11b", "06b", "09b", "08b", "05b", "03b", "08c", "10b", "14b", "17b"),
    *("11c", "19b", "13b", "12b", "23b", "25"),
]
HOURS = {2: 0.85, 4: 0.8, 8: 0.75}  # hours, and the share of them for reading: the rest is for exercises


def computed(notebook) -> float:
    """Minutes that the notebook takes to read."""
    read = [cell for cell in notebook.cells if not excluded(cell)]
    words = sum(len(cell.source.split()) for cell in read if cell.cell_type == "markdown")
    code = [cell for cell in read if cell.cell_type == "code"]
    written = sum(len(lines_of_code(cell.source)) for cell in code)
    printed = sum(lines_of_output(output) for cell in code for output in cell.outputs)
    return words / WORDS + written / LINES_OF_CODE + printed / LINES_OF_OUTPUT


def claimed(notebook) -> int | None:
    """Minutes that the notebook's first cell claims: `**25 minutes**`, or a row `| time | 25 minutes |`."""
    found = CLAIM.search(notebook.cells[0].source)
    return None if found is None else int(found[1] or found[2])


def excluded(cell) -> bool:
    tags = cell.metadata.get("tags", [])
    notes = cell.metadata.get("slideshow", {}).get("slide_type") == "notes"
    return notes or "exercise" in tags or "solution" in tags


def lines_of_code(source: str) -> list[str]:
    """The lines of a code cell that are not blank."""
    return [line for line in source.splitlines() if line.strip()]


def lines_of_output(output) -> int:
    """The lines of text that an output shows: a table as text, and for a figure its description."""
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return len("".join(text).splitlines())


def key(path: Path) -> str:
    """The number of a notebook, with the letter of a second lesson: "03", "03b"."""
    return path.name.partition("_")[0]


def load(folder: Path = NOTEBOOKS) -> dict[Path, object]:
    return {path: nbformat.read(path, as_version=4) for path in sorted(folder.glob("*.ipynb"))}


def syllabus(minutes: dict[str, int], hours: int) -> list[str]:
    """The numbers of the chapters to read in so many hours, in reading order."""
    left = hours * 60 * HOURS[hours]
    chosen = []
    for number in ORDER if hours > 4 else FIRST:  # a short deep dive must not fill the rest of a short syllabus
        if number in minutes and minutes[number] <= left:
            chosen.append(number)
            left -= minutes[number]
    return sorted(chosen)


def page(notebooks: dict[Path, object]) -> str:
    """docs/syllabi.md: what to read in two, four and eight hours, by the minutes that the chapters claim."""
    minutes = {key(path): claimed(notebook) or round(computed(notebook)) for path, notebook in notebooks.items()}
    names = {key(path): path.stem for path in notebooks}
    lines = [
        "# What to read in two, four or eight hours",
        "",
        "Each list has the minutes of reading that its chapters claim, and the rest of the time is for exercises.",
        "(`python -m tools.minutes --write` writes this page.)",
    ]
    for hours in HOURS:
        chosen = syllabus(minutes, hours)
        total = sum(minutes[number] for number in chosen)
        rest = hours * 60 - total
        lines += ["", f"## {hours} hours", ""]
        lines += [f"These chapters need {total} minutes of reading, which leaves {rest} for exercises.", ""]
        lines += ["| chapter | minutes |", "|---|---|"]
        lines += [f"| [{names[number]}](../notebooks/{names[number]}.ipynb) | {minutes[number]} |" for number in chosen]
    return "\n".join(lines) + "\n"


def table(notebooks: dict[Path, object]) -> str:
    rows = [f"{path.stem:36} claims {claimed(n) or '-':>3}, takes {computed(n):5.1f}" for path, n in notebooks.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    found = load()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(found), encoding="utf-8")
    else:
        print(table(found))
