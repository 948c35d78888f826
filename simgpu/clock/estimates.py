"""Converts the clock's seconds into an estimate with a range, and into text that says so.

The clock assumes that kernels reach the rates of short measurements, and that the host issues operators as fast as
that of a published trace. Published steps take longer. Two factors, fitted to published times, correct this: one on the
time of the GPU, by kind of work and class of GPU, and one on the time that the host needs to issue operators. Each has
a middle, and ends that give the range. `python -m tools.times.fitted` writes them, and docs/time_bias.md explains them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simgpu.clock.clock import Reading
from simgpu.gpus.specs import Spec, spec

FILE = Path(__file__).parents[1] / "data" / "time_factors.json"

RTX, NEW, OLDER = "RTX cards", "H100, H200 and B200", "older datacenter GPUs"
CLASSES = (RTX, NEW, OLDER)
TRAINING, INFERENCE, HOST = "training", "inference", "host"


def class_of(gpu: Spec) -> str:
    """Returns the class of a GPU, one of `CLASSES`."""
    if gpu.key.startswith("RTX"):
        return RTX
    return NEW if gpu.compute_capability >= (9, 0) else OLDER


@dataclass(frozen=True)
class Factor:
    """Holds a factor on times of the clock that was fitted to published times.

    work: `TRAINING`, `INFERENCE`, or `HOST` for the host's time. gpus: one of `CLASSES`, or "" for all. rows, sources:
    how many it is fitted to. low, middle, high: the factor, and the ends of its range.
    """

    work: str
    gpus: str
    rows: int
    sources: int
    low: float
    middle: float
    high: float

    @property
    def values(self) -> tuple[float, float, float]:
        """Returns the middle and the two ends."""
        return self.middle, self.low, self.high


@cache
def factors() -> tuple[Factor, ...]:
    """Returns all fitted factors; one for a class of GPUs comes before that for all."""
    return tuple(Factor(**one) for one in json.loads(FILE.read_text(encoding="utf-8"))["factors"])


def factor(work: str, gpus: str, known: Iterable[Factor] | None = None) -> Factor:
    """Returns the factor for some work on a class of GPUs, or for this work on all GPUs if the class has no own one."""
    return next(one for one in known or factors() if one.work == work and one.gpus in (gpus, ""))


def scaled(reading: Reading, gpu: float, host: float) -> float:
    """Returns the seconds of an interval if the GPU's and the host's work take so many times as long.

    The two overlap, and the longer one decides. The rest of the interval, in which neither works or they take turns,
    stays as it is.
    """
    busy = min(reading.busy, reading.seconds)
    rest = max(0.0, reading.seconds - max(busy, reading.issuing))
    return max(gpu * busy, host * reading.issuing) + rest


def bounds(reading: Reading, gpu: Factor, host: tuple[float, float, float]) -> tuple[float, float, float]:
    """Returns the estimated seconds of an interval, and the ends of their range. `host` is middle, low and high.

    At the upper end the shorter of the GPU's and the host's work does not overlap with the longer one.
    """
    middle, low, high = (scaled(reading, one, other) for one, other in zip(gpu.values, host, strict=True))
    shorter = min(gpu.middle * min(reading.busy, reading.seconds), host[0] * reading.issuing)
    return middle, low, high + shorter


@dataclass(frozen=True)
class TimeEstimate:
    """Holds an estimated time with its range, in seconds.

    clock: the simulated clock's seconds. seconds, low, high: with the fitted factors. work: the kind of work in words,
    "on any GPU" if too few published rows are of this class of GPUs.
    rows: published rows that the factor on the GPU's time is fitted to.
    """

    clock: float
    seconds: float
    low: float
    high: float
    work: str
    rows: int

    def __str__(self) -> str:
        return f"{self.short} for {self.work}"

    @property
    def short(self) -> str:
        """Returns the text without the kind of work."""
        low, high = between(self.low, self.high)
        return f"about {duration(self.seconds)}, estimate; {low} to {high}"

    def differs(self, other: "TimeEstimate") -> bool:
        """Returns whether the ranges do not overlap, so that it is known which time is shorter."""
        return self.high < other.low or other.high < self.low


def estimated(reading: Reading, gpu: str, slowness: float = 1.0) -> TimeEstimate | None:
    """Returns the estimate for an interval of the clock on a GPU, whose key is `gpu`; None if no time has passed.

    `slowness`: the factor that the user gave for the host. Where it is not 1, the host's speed is known, and only the
    factor on the GPU's time applies.
    """
    if reading.seconds <= 0:
        return None
    work = TRAINING if reading.backward > 0 else INFERENCE
    gpus = class_of(spec(gpu))
    found = factor(work, gpus)
    host = factor(HOST, gpus).values if slowness == 1 else (1.0, 1.0, 1.0)
    where = f"on GPUs like the {gpu}" if found.gpus else "on any GPU"
    return TimeEstimate(reading.seconds, *bounds(reading, found, host), f"{work} {where}", found.rows)


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def digits(value: float, count: int = 2) -> str:
    """Returns a number with two significant digits, thousands grouped: "0.14", "3.0", "140", "12,000"."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{count - 1}e}")
    exponent = int(f"{rounded:e}".split("e")[1])
    return f"{rounded:,.{max(0, count - 1 - exponent)}f}"


def _unit(seconds: float) -> tuple[float, str]:
    return next((one for one in UNITS if float(f"{seconds:.1e}") >= one[0]), UNITS[-1])


def duration(seconds: float) -> str:
    """Returns a time with two significant digits and its unit: "1.3 s", "140 ms", "12 µs"."""
    scale, name = _unit(seconds)
    return f"{digits(seconds / scale)} {name}"


def between(low: float, high: float) -> tuple[str, str]:
    """Returns both ends of a range of times as text; the first has no unit if it is the second's."""
    first, second = duration(low), duration(high)
    same = first.split(" ")[1] == second.split(" ")[1]
    return (first.split(" ")[0] if same else first), second
