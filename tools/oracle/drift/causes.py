"""Sorts what differs between the oracle and the simulated GPU on a new version of PyTorch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tools.oracle.report import Comparison

EQUAL = "equal"
NAME_GONE = "private name gone"
SIGNATURE = "signature changed"
ALLOCATION = "allocation changed"
TEXT = "text changed"
NEW_OPERATOR = "new operator"
COUNTER = "counter changed"
OTHER_ERROR = "other error"
CAUSES = (NAME_GONE, SIGNATURE, NEW_OPERATOR, ALLOCATION, COUNTER, TEXT, OTHER_ERROR)
"""In the order in which they are mended: what breaks outright comes first."""

ERROR = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt)): ?(.*)", re.M)
# A call that does not fit the function: Python's words, and those of pybind11 and of PyTorch's own parser.
CALL_DOES_NOT_FIT = re.compile(
    r"positional argument|keyword argument|incompatible function arguments|missing \d+ required|invalid combination of"
    r" arguments|takes no arguments|expected at (?:most|least)"
)
NO_KERNEL = re.compile(r"Could not run '([\w:.]+)'|no (?:meta )?kernel|not (?:yet )?implemented for '?[Mm]eta")
GONE = ("AttributeError", "ImportError", "ModuleNotFoundError", "KeyError")


class Difference(NamedTuple):
    """What one workload differs in first: its cause (one of CAUSES, or EQUAL) and what exactly.

    `peak_error`: how far the highest peak is off, as a fraction of the oracle's; None where a side failed. `reserved`:
    whether the reserved peak is equal.
    """

    cause: str
    what: str = ""
    peak_error: float | None = None
    reserved: bool | None = None

    @property
    def equal_peak(self) -> bool:
        """Whether both sides ran and have the same peak of allocated memory."""
        return self.peak_error == 0


def of_error(log: str) -> Difference:
    """Sorts a failure of the simulated GPU by the last error of its log."""
    found = ERROR.findall(log)
    if not found:
        return Difference(OTHER_ERROR, log.strip().splitlines()[-1][:120] if log.strip() else "no output")
    name, text = found[-1]
    short, line = name.rsplit(".", 1)[-1], f"{name}: {text}"[:160]
    if short in GONE:
        return Difference(NAME_GONE, line)
    if short == "TypeError" and CALL_DOES_NOT_FIT.search(text):
        return Difference(SIGNATURE, line)
    if short == "NotModelledError" or NO_KERNEL.search(text):
        return Difference(NEW_OPERATOR, line)
    return Difference(OTHER_ERROR, line)


def of_comparison(comparison: Comparison, known_operators: Collection[str]) -> Difference:
    """Sorts two traces by what they differ in first. `known_operators`: names of operators, without overload, of the
    version that the simulated GPU was compared with: an event of any other is NEW_OPERATOR."""
    ours, theirs = (max((s.reserved for s in t.stages), default=0) for t in (comparison.expected, comparison.actual))
    figures = {"peak_error": comparison.peak_error, "reserved": ours == theirs}
    if comparison.equal:
        return Difference(EQUAL, **figures)
    if comparison.differences:
        _, event = comparison.differences[0]
        new = [name for name in _operators(event.where) if not known(name, known_operators)]
        return Difference(NEW_OPERATOR if new else ALLOCATION, comparison.first(), **figures)
    if comparison.counters:
        return Difference(COUNTER, comparison.counters[0][1], **figures)
    return Difference(TEXT, _changed_words(comparison.expected.oom, comparison.actual.oom), **figures)


def known(label: str, operators: Collection[str]) -> bool:
    """Says whether a label such as "sum_dim_IntList" belongs to one of `operators` ("sum"): labels are named like C++
    functions, operator and overload joined by "_"."""
    parts = label.split("_")
    return any("_".join(parts[:end]) in operators for end in range(1, len(parts) + 1))


def _operators(where: str) -> list[str]:
    return [name for name in where.split("|")[0].split("/") if name]


def _changed_words(expected: str | None, actual: str | None) -> str:
    """The first words of two texts that are not the same, each with what follows it."""
    ours, theirs = (expected or "").split(), (actual or "").split()
    at = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(ours), len(theirs)) if at is None else at
    return f"{' '.join(ours[at : at + 6])!r} and not {' '.join(theirs[at : at + 6])!r}"


def grouped(found: Mapping[str, Difference]) -> list[tuple[str, str, list[str]]]:
    """(cause, what, workloads) of all that are not equal: causes as in CAUSES, the most frequent first in each."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, difference in found.items():
        if difference.cause != EQUAL:
            groups[difference.cause, difference.what].append(name)
    order = sorted(groups.items(), key=lambda item: (CAUSES.index(item[0][0]), -len(item[1]), item[0][1]))
    return [(cause, what, names) for (cause, what), names in order]


def counts(found: Iterable[Difference]) -> dict[str, int]:
    """How many are equal in every event and counter, in the allocated and in the reserved peak, and how many ran;
    "worst peak, ppm" is the largest error of a peak in millionths."""
    found = list(found)
    errors = [abs(one.peak_error) for one in found if one.peak_error is not None]
    return {
        "workloads": len(found),
        "equal in every event": sum(one.cause == EQUAL for one in found),
        "equal peaks": sum(one.equal_peak for one in found),
        "equal reserved peaks": sum(bool(one.reserved) for one in found),
        "failed": sum(one.peak_error is None for one in found),
        "peaks off by more than 1 %": sum(error > 0.01 for error in errors),
        "worst peak, ppm": round(1e6 * max(errors, default=0.0)),
    }
