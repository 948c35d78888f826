"""Reports placeholder values, which are the zeros that a run without values gives a program that asks for values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from simgpu.report.places import shortened

if TYPE_CHECKING:
    from simgpu.report.report import Report

ON_STUB = "--engine meta --values"
"""The options with which values are computed for a program that ran on the stub engine, which has none."""
NAMED = 3  # places in a sentence
SHOWN = 6  # lines of each kind in the section
BRANCHES = "Branches that were taken as if the value was 0"
HOLDS = "a comparison"
"""What was read by a comparison that was taken to hold (the stub engine's `torch.allclose`)."""


def sentence(sizes: tuple[tuple[str, str, int, bool], ...], how: str = "--values") -> str:
    """Says which lines' values decide sizes: "sizes at 2 lines depend on values (a.py:3, a.py:9): use --values".
    `sizes`: of a report, not empty. `how`: the options with which a run computes values.

    A run that has such sizes is a lower bound if each is the smallest one that is possible, and this says otherwise
    where one is not.
    """
    places = list(dict.fromkeys(_short(place) for _, place, _, _ in sizes))
    named = ", ".join(places[:NAMED]) + (", …" if len(places) > NAMED else "")
    count = f"{len(places)} lines" if len(places) > 1 else "1 line"
    said = f"sizes at {count} depend on values ({named}): use {how}"
    larger = [_short(place) for _, place, _, at_least in sizes if not at_least]
    return said + (f". At {larger[0]} the true size may also be smaller" if larger else "")


def section(report: Report) -> str:
    """The section of the page: lines whose values decide sizes, then branches, then nothing."""
    if report.values or not report.placeholder_values:
        return ""
    sizes = [(what, place, count) for what, place, count, _ in report.sizes]
    held = [one for one in report.branches if one[0] == HOLDS]
    branches = [one for one in report.branches if one not in sizes and one not in held]
    rest = [one for one in report.placeholder_values if one not in (*sizes, *held, *branches)]
    text = []
    if sizes:
        at_least = all(at_least for *_, at_least in report.sizes)
        smallest = "the smallest possible ones were used" if at_least else "0 was used for each value"
        how = ON_STUB if report.engine.startswith("Engine stub") else "--values"
        text += [f"Sizes that depend on values ({smallest}; {how} computes them)", *_rows(sizes)]
    if branches:
        text += [f"{BRANCHES} (the others were not run, and a GPU may take them)", *_rows(branches)]
    if held:
        text += ["Comparisons that were taken to hold, because kernels compute nothing here", *_rows(held)]
    if rest:
        total = sum(count for *_, count in rest)
        text += [f"Values that were answered as 0 ({total} times), which decide no size or branch where they are read"]
        text += _rows(rest)
    return "\n".join(text)


def _rows(lines: list[tuple[str, str, int]]) -> Iterable[str]:
    for what, place, count in lines[:SHOWN]:
        yield f"  {count:>6} × {what:<16} {_short(place)}"
    if len(lines) > SHOWN:
        yield f"  … from {len(lines) - SHOWN} more lines"


def _short(place: str) -> str:
    """ "library.py:9, from train.py:3", or one of them, with the short names of the files."""
    parts = [one.rpartition(":") for one in place.split(", from ")]
    return ", from ".join(f"{shortened(file)}:{line}" for file, _, line in parts)
