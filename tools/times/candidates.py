"""Tests candidates for the bias: does a factor of its own for a part of the time bring the estimates closer?

Each candidate is fitted without one source and tested on that source, in turn, among the rows of training that the GPU
limits, of the half that may be fitted.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy

from simgpu.clock.estimates import CLASSES, TRAINING
from simgpu.clock.tracks import COMMUNICATION, COMPUTE, Interval
from tools.times.fitted import GPU_LIMITS, Compared

ATTENTION, MATMULS, CONVOLUTIONS, MEMORY, TRANSFERS = "attention", "matmuls", "convolutions", "memory", "transfers"
PARTS = (MATMULS, ATTENTION, CONVOLUTIONS, MEMORY, TRANSFERS)
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmm_", "_addmm_activation"}


def part_of(interval: Interval) -> str | None:
    """Returns the part of the GPU's time that an interval belongs to; None for other lanes, and for CUDA graphs."""
    if interval.lane == COMMUNICATION:
        return TRANSFERS
    if interval.lane != COMPUTE or interval.name == "CUDA graph":
        return None
    if interval.name in _PRODUCTS:
        return MATMULS
    if "attention" in interval.name:
        return ATTENTION
    return CONVOLUTIONS if "convolution" in interval.name else MEMORY


def parts_of(intervals: Iterable[Interval]) -> tuple[float, ...]:
    """Returns the seconds of each of `PARTS`."""
    found: dict[str | None, float] = defaultdict(float)
    for one in intervals:
        found[part_of(one)] += one.end - one.start
    return tuple(found[name] for name in PARTS)


class Candidate(NamedTuple):
    """Describes a candidate: its name, and the columns that its factors multiply, as shares of the clock's time."""

    name: str
    columns: Callable[[Compared], Sequence[float]]


def _share(one: Compared, *names: str) -> float:
    return sum(one.parts[PARTS.index(name)] for name in names) / one.reading.seconds


def _apart(*names: str) -> Callable[[Compared], Sequence[float]]:
    """Returns the columns of a model that has a factor for some parts, and another for the rest."""
    return lambda one: (_share(one, *names), 1 - _share(one, *names))


def _classes(one: Compared) -> Sequence[float]:
    return [float(one.gpus == gpus) for gpus in CLASSES]


CANDIDATES = (
    Candidate("one factor for all GPUs", lambda one: (1.0,)),
    Candidate("a factor for each class of GPUs (achieved rates under load)", _classes),
    Candidate("matmuls and convolutions reach a lower rate, the rest does not", _apart(MATMULS, CONVOLUTIONS)),
    Candidate("attention has a factor of its own (its backward)", _apart(ATTENTION)),
    Candidate("memory-bound kernels have a factor of their own", _apart(MEMORY)),
    Candidate("transfers do not hide behind kernels", lambda one: (1.0, _share(one, TRANSFERS))),
    Candidate("gaps grow with the host's share", lambda one: (1.0, one.issuing)),
)


def chosen(compared: Iterable[Compared]) -> list[Compared]:
    """Returns the rows of training that the GPU limits and whose parts are known."""
    rows = (one for one in compared if one.row.kind == TRAINING and one.issuing <= GPU_LIMITS)
    return [one for one in rows if sum(one.parts) > 0.5 * one.reading.busy]


class Tested(NamedTuple):
    """Holds what a candidate says: factors from all rows, and the median errors on sources that it was not fitted to.

    error: of all rows. worst: of the source with the largest one.
    """

    name: str
    factors: tuple[float, ...]
    error: float
    worst: float


def tested(rows: Sequence[Compared]) -> list[Tested]:
    """Returns the results for all candidates, and first those of the clock as it is."""
    errors = {name: [abs(1 / one.on_gpu - 1) for one in rows if one.row.source == name] for name in _sources(rows)}
    found = [_of_errors("the clock as it is", (), errors)]
    for candidate in CANDIDATES:
        errors = {}
        for name in _sources(rows):
            factors = _solved(candidate, [one for one in rows if one.row.source != name])
            errors[name] = [
                abs(float(numpy.dot(candidate.columns(one), factors)) / one.on_gpu - 1)
                for one in rows
                if one.row.source == name
            ]
        found.append(_of_errors(candidate.name, _solved(candidate, rows), errors))
    return found


def _sources(rows: Sequence[Compared]) -> list[str]:
    return list(dict.fromkeys(one.row.source for one in rows))


def _of_errors(name: str, factors: Iterable[float], errors: dict[str, list[float]]) -> Tested:
    every = [error for one in errors.values() for error in one]
    return Tested(name, tuple(factors), statistics.median(every), max(map(statistics.median, errors.values())))


def _solved(candidate: Candidate, rows: Sequence[Compared]) -> list[float]:
    """Returns the factors with the smallest squares of relative errors, where each source counts once.

    A class of GPUs without a row has the factor 1.
    """
    counts = {name: sum(one.row.source == name for one in rows) for name in _sources(rows)}
    weights = [1 / one.on_gpu / counts[one.row.source] ** 0.5 for one in rows]
    table = numpy.array([candidate.columns(one) for one in rows]) * numpy.array(weights)[:, None]
    wanted = numpy.array([1 / counts[one.row.source] ** 0.5 for one in rows])
    factors = numpy.linalg.lstsq(table, wanted, rcond=None)[0]
    return [float(one) if table[:, place].any() else 1.0 for place, one in enumerate(factors)]
