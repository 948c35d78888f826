"""The page of exactness, written from docs/exactness.json: as chapter 24 shows it, with every result below."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tools.site import pictures, tables

RUNGS = {
    1: ("Allocator", "Given the same requests: the same addresses, segments and counters."),
    2: ("Event streams", "Given the same script: the same requests and frees, in the same order."),
    3: ("Peaks", "The same peak of allocated memory and the same reserved memory."),
    4: ("nvidia-smi", "The CUDA context and what is reserved, together."),
    5: ("Out of memory", "The same operator fails with the same text."),
    6: ("The notebooks", "The stored outputs come out again."),
    7: ("Times", "The simulated clock against times that others measured. *Equal* is not the aim here."),
}
SIDES = {
    "the oracle": "the oracle",
    "recordings of a real": "a stranger's GPU",
    "recordings": "our own GPU",
    "": "documents, notebooks",
}
COLUMNS = ("the oracle", "a stranger's GPU", "documents, notebooks", "our own GPU")
HEAD = """\
# How exact is it?

What each kind of number in this course was compared with, and how it fared. Tests find it, write it into one file, and
fail when they find less than the file says ([chapter 24](../notebooks/24_how_exact_is_this.ipynb) lets you repeat
it, and break it). This page is that file; none of its numbers was typed. Written by tests with torch {torch},
{first} to {last}.

*The oracle* is PyTorch's real CUDA build on stub libraries: the host code runs, the kernels do nothing
([oracle](oracle.md)). It is not a GPU, and what it says is no measurement. *A stranger's GPU*: memory snapshots that
somebody published. *Documents*: figures in print, of other machines and years; *notebooks*: their own stored outputs.

"""


def side(against: str) -> str:
    """What kind of thing was on the other side of a comparison."""
    return next(kind for begins, kind in SIDES.items() if against.startswith(begins))


def page(results: list[dict], folder: Path) -> str:
    """The page in Markdown; its pictures are drawn into `folder`."""
    dates = sorted(result["date"] for result in results)
    versions = sorted({result["torch"] for result in results})
    parts = [HEAD.format(torch=", ".join(versions), first=dates[0], last=dates[-1]), _ladder(results)]
    peaks, clock = (picture.write(folder) for picture in pictures.ladder(results))
    parts += ["## What is not equal\n\n", _failures(results)]
    parts += ["## Peaks\n\nThe number by which one chooses a GPU, over all workloads of the oracle's.\n\n", peaks]
    parts += ["\n## nvidia-smi\n\n", _plain(results, 4), "\n## Times\n\n", clock, "\n", _plain(results, 7)]
    return "".join([*parts, "\n## Every result\n\n", *_every(results)])


def _ladder(results: list[dict]) -> str:
    """Comparisons without any difference, by rung and by what stood on the other side."""
    counts: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for result in results:
        counts[result["rung"], side(result["against"])] += [
            not difference for _, _, _, difference, _ in result["items"]
        ]
    rows = []
    for rung, (name, means) in RUNGS.items():
        cells = [counts.get((rung, column), []) for column in COLUMNS]
        rows.append([f"{rung}. **{name}.** {means}", *(f"{sum(c)} of {len(c)}" if c else "" for c in cells)])
    total = sum(len(result["items"]) for result in results)
    said = f"## The ladder\n\n{total:,} comparisons: how many are without any difference. "
    said += "Each of the first six rungs needs the one before it.\n\n"
    after = ""
    near = [
        f"{sum(item[2] for item in result['items'])} of {sum(item[1] for item in result['items'])} {result['unit']}"
        for result in results
        if re.search(r" to \d+ ?%$", result["unit"])
    ]
    if near:
        after = f"\nOn rungs 4 and 7 nobody expects an equal number. What is near enough there: {', '.join(near)}.\n"
    own = any(column == "our own GPU" for _, column in counts)
    return (
        said
        + tables.write(["rung", *COLUMNS], rows)
        + after
        + ("" if own else "\n**No GPU has recorded anything for this project yet.**\n")
        + "\n"
    )


def _failures(results: list[dict]) -> str:
    """What differs on rungs 1 to 3 and 5, by name."""
    rows = [
        [f"`{name}`", result["result"], f"{equal:,} of {of:,} {result['unit']}"]
        for result in results
        if result["rung"] in (1, 2, 3, 5)
        for name, of, equal, difference, _ in result["items"]
        if difference
    ]
    said = (
        "On the rungs of memory, by name. An item such as `op-float32-plain-small` is a whole suite of PyTorch's own\n"
    )
    said += (
        "samples, and differs as soon as one operator of it does; [Operators, one by one](operators.md) names them.\n\n"
    )
    return said + tables.write(["what", "result", "equal"], rows) + "\n"


def _plain(results: list[dict], rung: int) -> str:
    """The items of a rung with what was found, a table for each result."""
    made = []
    for result in (result for result in results if result["rung"] == rung):
        rows = [[_text(name), _text(difference) or "equal"] for name, _, _, difference, _ in result["items"]]
        made.append(
            f"*{result['result']}*, against {_text(result['against'])}.\n\n" + tables.write(["what", "found"], rows)
        )
    return "\n".join(made)


def _every(results: list[dict]):
    """Each result with its items, folded."""
    for result in results:
        whole = sum(not difference for _, _, _, difference, _ in result["items"])
        title = f"{result['result']}: {whole} of {len(result['items'])} without a difference"
        rows = [
            [f"`{name}`", f"{equal:,} of {of:,}", _text(difference)]
            for name, of, equal, difference, _ in result["items"]
        ]
        head = f"Rung {result['rung']}, against {_text(result['against'])}; torch {result['torch']}, {result['date']}."
        table = tables.write(["item", f"equal {result['unit']}", "difference"], rows)
        yield f"``````{{dropdown}} {title}\n{head}\n\n{table}``````\n\n"


def _text(text: str) -> str:
    """Text as Markdown that means it literally."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", text)
