"""Fits the factors on the clock's times to published times: `python -m tools.times.fitted`.

It reads the half "fit" in docs/published_times.json (what `python -m tools.times.published_clock` reads off the clock)
and writes simgpu/data/time_factors.json and docs/time_bias.md. What the half that is kept out says about the factors is
in docs/published_kept_out.json.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simgpu.clock import estimates
from simgpu.clock.clock import Reading
from simgpu.clock.estimates import CLASSES, HOST, INFERENCE, TRAINING, Factor
from simgpu.gpus.specs import spec
from tools.times import published
from tools.times.published import Row

DOCS = Path(__file__).parents[2] / "docs"
TIMES = DOCS / "published_times.json"
GPU_LIMITS, HOST_LIMITS = 0.3, 0.6
"""Shares of the clock's time that the host needs to issue operators: up to the first the GPU limits a step, from the
second on the host does. A row between them is fitted to neither factor."""
ENOUGH = 10
SOURCES = {TRAINING: 3, INFERENCE: 1}
"""A class of GPUs with fewer rows or sources has the factor of all GPUs. (Inference has two sources in all.)"""
NINE_OF_TEN = statistics.NormalDist().inv_cdf(0.95)
"""Standard deviations to either side within which nine of ten values are."""
BOOK = 3.229
"""The factor of the host of EfficientPyTorch, fitted to two of its times (tests/published/test_times.py)."""


@dataclass(frozen=True)
class Compared:
    """Holds a published row with the clock's reading of its step.

    parts: seconds of the parts of the GPU's time (`candidates.PARTS`), empty if they are not known.
    """

    row: Row
    reading: Reading
    parts: tuple[float, ...] = ()

    @property
    def real(self) -> float:
        """Returns the published seconds of the step."""
        assert self.row.seconds is not None
        return self.row.seconds

    @property
    def gpus(self) -> str:
        """Returns the class of its GPU."""
        return estimates.class_of(spec(self.row.simulated_gpu or ""))

    @property
    def issuing(self) -> float:
        """Returns the share of the clock's time that the host needs to issue operators."""
        return self.reading.issuing / self.reading.seconds

    @property
    def on_gpu(self) -> float:
        """Returns the factor on the GPU's time that gives the published time, if the GPU limits the step."""
        return self.real / self.reading.seconds

    @property
    def on_host(self) -> float:
        """Returns the factor on the host's time that gives the published time, if the host limits the step."""
        return 1 + (self.real - self.reading.seconds) / self.reading.issuing

    def times(self, known: Sequence[Factor]) -> tuple[float, float, float]:
        """Returns the estimated seconds and the ends of their range with these factors."""
        gpu, host = (estimates.factor(work, self.gpus, known) for work in (self.row.kind, HOST))
        return estimates.bounds(self.reading, gpu, host.values)


def stored() -> list[Compared]:
    """Returns the rows of the half "fit" whose times are stored."""
    found = json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}
    rows = ((row, found[row.name]) for row in published.rows() if row.name in found)
    return [Compared(row, Reading(*values[:3]), tuple(values[3:])) for row, values in rows]


def store(*compared: Compared) -> None:
    """Stores rows of the half "fit"."""
    found = {one.row.name: (*one.reading[:3], *one.parts) for one in (*stored(), *compared)}
    texts = (f"{json.dumps(name)}: {json.dumps([_short(one) for one in found[name]])}" for name in sorted(found))
    TIMES.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value below which this share of the values is, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def deviations(ratios: dict[str, list[float]], middle: float) -> float:
    """Returns the mean square of how far logarithms of ratios are from that of `middle`; each source counts once."""
    squares = ([math.log(ratio / middle) ** 2 for ratio in one] for one in ratios.values())
    return statistics.mean(map(statistics.mean, squares))


def fitted(work: str, gpus: str, ratios: dict[str, list[float]], between: float = 0.0) -> Factor:
    """Returns the factor from ratios of published to clock times, by source.

    Each source counts once, however many rows it has: the middle is the median of the sources' medians. The range is
    that in which nine of ten rows of a further source would be, if logarithms of ratios were normal. `between` is added
    to their variance, for a factor that has only one source.
    """
    middle = statistics.median(map(statistics.median, ratios.values()))
    sources = len(ratios)
    variance = deviations(ratios, middle) + (between if sources == 1 else 0.0)
    reach = math.exp(NINE_OF_TEN * math.sqrt(variance * (1 + 1 / sources)))
    values = (round(value, 2) for value in (middle / reach, middle, middle * reach))
    return Factor(work, gpus, sum(map(len, ratios.values())), sources, *values)


def fit(compared: Iterable[Compared]) -> list[Factor]:
    """Returns all factors: those of classes with enough rows, then those of all GPUs, and that of the host."""
    rows = list(compared)
    limited = [one for one in rows if one.issuing <= GPU_LIMITS]
    training = _by_source((one, one.on_gpu) for one in limited if one.row.kind == TRAINING)
    medians = {name: [statistics.median(one)] for name, one in training.items()}
    between = deviations(medians, statistics.median(one[0] for one in medians.values()))
    found = []
    for work in (TRAINING, INFERENCE):
        for gpus in (*CLASSES, ""):
            chosen = [one for one in limited if one.row.kind == work and gpus in (one.gpus, "")]
            ratios = _by_source((one, one.on_gpu) for one in chosen)
            if not gpus or (len(chosen) >= ENOUGH and len(ratios) >= SOURCES[work]):
                found.append(fitted(work, gpus, ratios, between))
    host = _by_source((one, one.on_host) for one in rows if one.issuing >= HOST_LIMITS)
    return [*found, fitted(HOST, "", host | {"EfficientPyTorch": [BOOK]})]


def _by_source(ratios: Iterable[tuple[Compared, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for one, ratio in ratios:
        found[one.row.source].append(ratio)
    return dict(found)


def main() -> None:
    """Fits the factors, and writes them and the page."""
    from tools.times import time_bias

    compared = stored()
    found = fit(compared)
    estimates.FILE.write_text(
        json.dumps({"factors": [asdict(one) for one in found]}, indent=1) + "\n", encoding="utf-8"
    )
    time_bias.PAGE.write_text(time_bias.page(compared, found), encoding="utf-8")


if __name__ == "__main__":
    main()
