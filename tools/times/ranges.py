"""Fits the factors of simgpu/clock/ranges.py to the published rows of the half "fit": `python -m tools.times.ranges`.

For each kind, the factor is the mean of its sources' medians of real time ÷ clock, on a logarithmic scale, so a source
with many rows counts as much as one with few. The range is a prediction interval of 90 % for one row of a source that
is not among them: rows of one source differ by `within`, and sources differ by `across`, which is estimated over all
kinds because each has one to three sources. Its degrees of freedom are few, so the interval is of Student's t.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from simgpu.clock.ranges import CLASSES, INFERENCE, TRAINING, class_of, name
from tools.times import published
from tools.times.published import Row
from tools.times.published_clock import stored

FILE = Path(__file__).parents[2] / "simgpu" / "data" / "time_factors.json"
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t that 5 % exceed, for 1 to 10 degrees of freedom."""

Ratios = dict[str, dict[str, list[float]]]
"""Logarithms of real time ÷ clock, by kind and source."""


def kind(row: Row) -> str:
    """Returns the name of a row's kind."""
    return name(row.kind == TRAINING, class_of(row.simulated_gpu or ""), row.gpus)


def ratios(rows: Iterable[tuple[Row, float]]) -> Ratios:
    """Returns the logarithms of the ratios of rows and the clock's seconds, by kind and source."""
    found: Ratios = defaultdict(lambda: defaultdict(list))
    for row, seconds in rows:
        found[kind(row)][row.source].append(math.log(row.seconds / seconds))
    return found


def fitted(found: Ratios) -> dict[str, dict]:
    """Returns the factors by kind, as they are stored. A kind without rows has those of all rows of its work."""
    across, freedom = _across(found)
    result = {}
    for work in (TRAINING, INFERENCE):
        own = {key: sources for key, sources in found.items() if key.startswith(work)}
        within = _within(own.values())
        for gpus, ranks in product(CLASSES, (1, 2)):
            key = name(work == TRAINING, gpus, ranks)
            sources, of = (own[key], "") if key in own else (_together(own), work)
            middle = statistics.fmean(statistics.median(values) for values in sources.values())
            width = T_95[freedom - 1] * math.sqrt(within**2 + across**2 * (1 + 1 / len(sources)))
            ends = [round(math.exp(middle + sign * width), 2) for sign in (-1, 0, 1)]
            rows = 0 if of else sum(map(len, sources.values()))
            result[key] = dict(zip(("low", "middle", "high"), ends, strict=True))
            result[key] |= {"rows": rows, "sources": sorted(sources), "of": of}
    return result


def _across(found: Ratios) -> tuple[float, int]:
    """Returns the standard deviation of the sources' medians around their kind's mean, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for sources in found.values():
        medians = [statistics.median(values) for values in sources.values()]
        squares += sum((value - statistics.fmean(medians)) ** 2 for value in medians)
        freedom += len(medians) - 1
    return math.sqrt(squares / freedom), freedom


def _within(kinds: Iterable[dict[str, list[float]]]) -> float:
    """Returns the standard deviation of rows around their source's median."""
    far = [(v - statistics.median(values)) ** 2 for kind in kinds for values in kind.values() for v in values]
    return math.sqrt(statistics.fmean(far))


def _together(kinds: Ratios) -> dict[str, list[float]]:
    """Returns the ratios of several kinds by source."""
    found: dict[str, list[float]] = defaultdict(list)
    for sources in kinds.values():
        for source, values in sources.items():
            found[source] += values
    return found


def of_the_fit_half() -> dict[str, dict]:
    """Returns the factors from the stored times of the half "fit"."""
    times = stored()
    rows = [(row, times[row.name]) for row in published.rows() if row.name in times and row.seconds]
    return fitted(ratios((row, seconds) for row, seconds in rows if row.half == "fit"))


def main() -> None:
    """Writes the factors."""
    FILE.write_text(json.dumps(of_the_fit_half(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
