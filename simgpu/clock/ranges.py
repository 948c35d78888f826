"""Turns a time of the simulated clock into an estimate with a range, from published times of real GPUs.

The clock assumes constant rates, and real GPUs are slower in most kinds of work, above all in training on current GPUs.
So `estimate` multiplies a time by a factor that was fitted to published times of its kind, and gives the range in which
nine of ten further times are expected. A kind is training or inference, on one class of GPUs, on one GPU or on several.
Eager and compiled steps are one kind, because the published rows of both do not differ by more than those of two
sources do. `python -m tools.times.ranges` writes the factors, and docs/time_estimates.md has them and how
far off they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from simgpu.gpus.specs import spec

TRAINING, INFERENCE = "training", "inference"
ONE, SEVERAL = "one GPU", "several GPUs"
CLASSES = ("Volta and Turing", "Ampere and Ada", "Hopper and Blackwell")


def class_of(gpu: str) -> str:
    """Returns the class of a GPU of simgpu, one of `CLASSES`, by its compute capability: below 8, 8.x, and 9 and above.

    Raises ValueError for an unknown GPU.
    """
    major, _ = spec(gpu).compute_capability
    return CLASSES[0 if major < 8 else 1 if major < 9 else 2]


@dataclass(frozen=True)
class Factors:
    """Holds the ratios of real to simulated time of one kind.

    `middle` is the fitted factor, and `low` and `high` are the ends of its range. `rows` and `sources` are the published
    rows of this kind and the sources that they come from; `of` names the wider kind if there are none.
    """

    low: float
    middle: float
    high: float
    rows: int
    sources: tuple[str, ...]
    of: str = ""


@dataclass(frozen=True)
class Estimate:
    """An estimate of a real GPU's time in seconds, with its range. `clock`: the simulated clock's time."""

    low: float
    middle: float
    high: float
    clock: float
    kind: str

    def __str__(self) -> str:
        """Returns "about 190 ms (an estimate, 120 to 300 ms)", with two digits."""
        return f"about {two_digits(self.middle)} (an estimate, {between(self.low, self.high)})"


def estimate(seconds: float, gpu: str, training: bool, ranks: int = 1) -> Estimate:
    """Returns the estimate for a time of the simulated clock.

    `seconds`: the clock's time. `training`: whether it has a backward pass or an optimizer step. `ranks`: how many GPUs
    share the work. Raises ValueError for an unknown GPU.
    """
    kind = name(training, class_of(gpu), ranks)
    found = factors()[kind]
    return Estimate(found.low * seconds, found.middle * seconds, found.high * seconds, seconds, kind)


def name(training: bool, gpus: str, ranks: int) -> str:
    """Returns the name of a kind: "training, Ampere and Ada, one GPU"."""
    return f"{TRAINING if training else INFERENCE}, {gpus}, {ONE if ranks == 1 else SEVERAL}"


@cache
def factors() -> dict[str, Factors]:
    """Returns the factors by the kinds' names, from simgpu/data/time_factors.json."""
    text = resources.files("simgpu").joinpath("data/time_factors.json").read_text(encoding="utf-8")
    return {kind: Factors(**{**found, "sources": tuple(found["sources"])}) for kind, found in json.loads(text).items()}


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def two_digits(seconds: float) -> str:
    """Returns a time with two significant digits and its unit: "1.9 s", "190 ms"."""
    unit, word = _unit(seconds)
    return f"{_rounded(seconds / unit)} {word}"


def between(low: float, high: float) -> str:
    """Returns a range with two significant digits: "120 to 300 ms", "0.9 to 1.4 s"."""
    first, second = two_digits(low), two_digits(high)
    number, word = first.split()
    return f"{number} to {second}" if second.endswith(f" {word}") else f"{first} to {second}"


def _unit(seconds: float) -> tuple[float, str]:
    return next(((unit, word) for unit, word in UNITS if seconds >= 0.995 * unit), UNITS[-1])


def _rounded(value: float) -> str:
    if value <= 0:
        return "0"
    rounded = float(f"{value:.1e}")
    return f"{rounded:,.{max(1 - math.floor(math.log10(rounded)), 0)}f}"
