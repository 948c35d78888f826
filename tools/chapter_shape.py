"""Checks the shape of a chapter by rules with a name each: `python -m tools.chapter_shape notebooks/NN*`.

    python -m tools.chapter_shape notebooks/03*.ipynb           what is missing, also of rules that may be broken yet
    python -m tools.chapter_shape --collapse [NOTEBOOK ...]     collapse the solutions, source and outputs

CONTRIBUTING.md, "A chapter", has them in words. tools/not_yet.py lists who may still break which rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import nbformat

from tools import minutes
from tools.not_yet import NOT_YET

MAX_LINES = 12  # of a code cell
DECIMALS = re.compile(r"(?<![\w.])\d+\.\d{4,}")
GUESS = re.compile(r"^(guess\w*) = (.*?)(?:  #.*)?$")
UNIT = re.compile(
    r"\((?:B|KiB|MiB|GiB|s|ms|µs|%|tokens|[^)]* (?:a|per) [^)]*)\)|^(?:B|KiB|MiB|GiB|ms|s|µs|%|power of ten)$|^MiB\b"
    r"|^\w+ per \w+$"
)


def problems(path: Path) -> dict[str, list[str]]:
    """What is wrong with the notebook at `path`, by the name of the rule; only rules that it breaks."""
    notebook = nbformat.read(path, as_version=4)
    found = {name: list(rule(path, notebook)) for name, rule in RULES.items()}
    return {name: lines for name, lines in found.items() if lines}


def heading(path, notebook) -> Iterator[str]:
    """The chapter's number, and a question."""
    first = notebook.cells[0].source.splitlines()[0] if notebook.cells else ""
    if not re.fullmatch(rf"# {minutes.key(path)} · .+\?", first):
        yield f"the heading is {first!r}: wanted '# {minutes.key(path)} · a question?'"


def reading_time(path, notebook) -> Iterator[str]:
    """A claim in the first cell within 10 % of the computed minutes, and at most 30 minutes."""
    takes, claims = minutes.computed(notebook), minutes.claimed(notebook)
    if claims is None:
        yield "the first cell claims no minutes: wanted **25 minutes**"
    elif abs(claims - takes) > max(takes / 10, 0.5):
        yield f"it claims {claims} minutes and takes {takes:.1f}: wanted within 10 %"
    if takes > minutes.LONGEST:
        yield f"it takes {takes:.1f} minutes: wanted {minutes.LONGEST} at most, or a second lesson"


def cell_length(path, notebook) -> Iterator[str]:
    """Code cells of at most 12 lines."""
    for number, cell in _code(notebook):
        if (lines := len(minutes.lines_of_code(cell.source))) > MAX_LINES:
            yield f"code cell {number} has {lines} lines: wanted {MAX_LINES} at most"


def decimals(path, notebook) -> Iterator[str]:
    """At most three decimals in what is printed, but in cells tagged `digits`."""
    for number, cell in _code(notebook):
        if "digits" in _tags(cell):
            continue
        found = [hit for text in map(_text, cell.outputs) for hit in DECIMALS.findall(text)]
        if found:
            yield f"code cell {number} prints {', '.join(dict.fromkeys(found[:3]))}: wanted three decimals at most"


def figures(path, notebook) -> Iterator[str]:
    """Title, axes with units, and alternative text: figures of labkit.plots bring them as metadata."""
    for number, cell in _code(notebook):
        for output in cell.outputs:
            if "image/png" not in output.get("data", {}):
                continue
            about = output.get("metadata", {}).get("image/png", {})
            if not about.get("alt"):
                yield f"code cell {number}: a figure without alternative text (draw it by labkit.plots)"
                continue
            if not about.get("title"):
                yield f"code cell {number}: a figure without a title"
            if about.get("axes") and not any(UNIT.search(name) for name in about["axes"]):
                yield f"code cell {number}: no axis of a figure has a unit; they are called {about['axes']}"


def solutions(path, notebook) -> Iterator[str]:
    """Solutions are collapsed: source and outputs."""
    for number, cell in enumerate((cell for cell in notebook.cells if "solution" in _tags(cell)), 1):
        if cell.cell_type == "code" and cell.metadata.get("jupyter") != COLLAPSED:
            yield f"solution cell {number} is open: python -m tools.chapter_shape --collapse {path.name}"


def exercises(path, notebook) -> Iterator[str]:
    """A stub judges the reader's answer, which is empty in the notebook; the solution is judged and is correct."""
    groups = [(tag, list(cells)) for tag, cells in groupby(notebook.cells, _exercise_tag)]
    for number, (stub, solution) in enumerate(_pairs([group for group in groups if group[0]]), 1):
        said = {
            tag: "".join(_text(o) for cell in cells for o in cell.get("outputs", [])) for tag, cells in (stub, solution)
        }
        if "judge(" not in "".join(cell.source for cell in stub[1] if cell.cell_type == "code"):
            yield f"exercise {number}: no stub calls judge(answer, right=...)"
        elif "no answer yet" not in said["exercise"]:
            yield f"exercise {number}: the stub does not print 'no answer yet': its answer is wanted as ..."
        elif "Correct" not in said["solution"]:
            yield f"exercise {number}: the solution is not judged to be correct"


def guessing(path, notebook) -> Iterator[str]:
    """Three to five guesses in a main notebook, each with a name of its own and three dots; the score at the end."""
    found = [GUESS.match(line) for _, cell in _code(notebook) for line in cell.source.splitlines()]
    names = [(hit[1], hit[2]) for hit in found if hit]
    least = 1 if path.name.startswith(("00_", "24_")) or not minutes.key(path).isdigit() else 3
    if not least <= len(names) <= 5:
        yield f"{len(names)} guesses: wanted {least} to 5 lines guess_NAME = ..."
    source = "\n".join(cell.source for _, cell in _code(notebook))
    for name, value in names:
        if value != "...":
            yield f"{name} is stored as {value}: wanted three dots"
        if not re.search(rf"\bguess={name}\b", source):
            yield f"{name} is compared nowhere: wanted ledger.compare(..., guess={name}) or guesses.compare"
    if len({name for name, _ in names}) < len(names):
        yield "two guesses have one name: a comparison that is run again would take the other's"
    if "guesses.score()" not in source:
        yield "no cell shows guesses.score()"


def names_kept(path, notebook) -> Iterator[str]:
    """Names are released with `name = None`, so that a cell may be run twice; a cell tagged `del` teaches `del`."""
    for number, cell in _code(notebook):
        if "del" in _tags(cell):
            continue
        tree = ast.parse("\n".join("" if re.match(r"\s*[%!]", line) else line for line in cell.source.splitlines()))
        for node in tree.body:
            if isinstance(node, ast.Delete) and any(isinstance(target, ast.Name) for target in node.targets):
                yield f"code cell {number} deletes a name: wanted name = None (or the tag del, where it is the lesson)"


RULES: dict[str, Callable[..., Iterator[str]]] = {
    "heading": heading,
    "minutes": reading_time,
    "cells": cell_length,
    "decimals": decimals,
    "figures": figures,
    "solutions": solutions,
    "exercises": exercises,
    "guesses": guessing,
    "names": names_kept,
}
COLLAPSED = {"outputs_hidden": True, "source_hidden": True}


def collapse(path: Path) -> bool:
    """Collapse the solutions of a notebook, source and outputs; whether anything had to be changed."""
    notebook = nbformat.read(path, as_version=4)
    open_ones = [c for c in notebook.cells if "solution" in _tags(c) and c.cell_type == "code"]
    open_ones = [cell for cell in open_ones if cell.metadata.get("jupyter") != COLLAPSED]
    for cell in open_ones:
        cell.metadata["jupyter"] = dict(COLLAPSED)
    if open_ones:
        nbformat.write(notebook, path)
    return bool(open_ones)


def _code(notebook):
    """The code cells with their numbers, from 1."""
    return enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1)


def _tags(cell):
    return cell.metadata.get("tags", [])


def _outputs(cells):
    return [output for cell in cells for output in cell.get("outputs", [])]


def _exercise_tag(cell) -> str:
    return next((tag for tag in _tags(cell) if tag in ("exercise", "solution")), "")


def _pairs(groups):
    return zip(groups[::2], groups[1::2], strict=False)


def _text(output) -> str:
    """What an output says as text."""
    data = output.get("data", {})
    return "".join(output.get("text", "") or data.get("text/plain", ""))


def main(arguments: list[str]) -> int:
    collapsing = "--collapse" in arguments
    paths = [Path(name) for name in arguments if not name.startswith("-")] or sorted(minutes.NOTEBOOKS.glob("*.ipynb"))
    if collapsing:
        print("\n".join(f"{path.name}: collapsed" for path in paths if collapse(path)) or "all were collapsed")
        return 0
    bad = False
    for path in paths:
        for name, lines in problems(path).items():
            allowed = name in NOT_YET.get(path.stem, ())
            bad |= not allowed
            print(*(f"{path.stem}: {name}{' (not yet)' if allowed else ''}: {line}" for line in lines), sep="\n")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
