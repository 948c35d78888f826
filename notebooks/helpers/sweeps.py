"""Runs a measurement over batch sizes or lengths, and fits a polynomial to it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.polynomial import Polynomial
from tqdm.auto import tqdm

from labkit import plots
from labkit.gpu import current
from labkit.units import MiB, mib, whole_bytes


@dataclass
class Sweep:
    """Holds measured bytes by size; ``stopped`` is the size that ran out of memory, if one did."""

    name: str
    sizes: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    stopped: int | None = None

    def table(self) -> pd.DataFrame:
        """Returns measured MiB by size; the name of the columns is the GPU, and says whether it is simulated."""
        frame = pd.DataFrame({"measured (MiB)": [n / MiB for n in self.measured]}, index=self.sizes)
        frame.index.name = self.name
        frame.columns.name = frame.attrs["gpu"] = str(current())
        return frame

    def fit(self, degree: int) -> Polynomial:
        """Returns the least-squares polynomial of this degree, from size to MiB.

        ``fit(1)(64)`` is the prediction at 64, and ``fit(1).convert().coef`` are the coefficients, the constant first.
        Raises ``ValueError`` if there are no more points than coefficients, because such a fit passes through any
        points.
        """
        if len(self.sizes) < degree + 2:
            raise ValueError(f"to test degree {degree}, {degree + 2} sizes or more are wanted, not {len(self.sizes)}")
        return Polynomial.fit(self.sizes, np.array(self.measured) / MiB, degree)

    def differences(self, order: int = 1) -> list[int]:
        """Returns exact differences between neighbours in bytes, taken ``order`` times.

        First differences are all equal if memory grows linearly, and second differences if it grows quadratically.
        Raises ``ValueError`` if the sizes are not equally spaced.
        """
        if len(set(np.diff(self.sizes))) > 1:
            raise ValueError(f"differences need equally spaced sizes, not {self.sizes}")
        return [int(n) for n in np.diff(np.array(self.measured, dtype=object), order)]

    def plot(self, degree: int | None = None, about: str = "", counter: str = "Allocated peak", title: str = ""):
        """Draws the measurements and the fit of ``degree``.

        ``about`` names the model, ``counter`` what grows. ``title`` says the finding, and without it the title names
        ``counter`` and the sizes.
        """
        return draw(self, None if degree is None else self.fit(degree), about, counter, title)


def sweep(measure: Callable[[int], int], sizes: Iterable[int], name: str = "batch") -> Sweep:
    """Calls ``measure(size)``, which returns bytes, for each size, and stops at the first that runs out of memory.

    Cached segments are freed before each call. The tensors of one call should be local to ``measure``, so that they are
    freed before the next.
    """
    result = Sweep(name)
    with clean_starts() as start:
        for size in tqdm(list(sizes), desc=name):
            start()
            try:
                measured = measure(size)
            except torch.cuda.OutOfMemoryError:
                result.stopped = size
                break
            result.measured.append(whole_bytes(measured))
            result.sizes.append(size)
    return result


@contextmanager
def clean_starts() -> Iterator[Callable[[], None]]:
    """Yields a function that collects reference cycles and frees cached segments, to call before each measurement.

    Objects that exist before the first measurement are collected once and then set aside (``gc.freeze``), because a
    search through the objects of all imported modules takes longer than a small training step.
    """
    gc.collect()
    gc.freeze()

    def start() -> None:
        gc.collect()
        torch.cuda.empty_cache()

    try:
        yield start
    finally:
        gc.unfreeze()


def draw(result, fit=None, about: str = "", counter: str = "Allocated peak", title: str = "") -> Figure:
    """Draws a :class:`Sweep`, with the polynomial ``fit`` (size to MiB) and its formula, under ``title``."""
    ends = [(n, m) for n, m in zip(result.sizes, result.measured, strict=True)]
    alt = (
        f"{mib(ends[0][1])} at {ends[0][0]:,} and {mib(ends[-1][1])} at {ends[-1][0]:,}." if ends else "No size fitted."
    )
    alt += "" if fit is None else f" Fit: {formula(fit)} MiB."
    alt += "" if result.stopped is None else f" Out of memory at {result.stopped:,}."
    figure, axes = plots.new(title or f"{counter} by {result.name}", alt, about=about)
    axes.plot(result.sizes, [n / MiB for n in result.measured], "o", color=plots.palette.blue, ms=5, label="measured")
    if fit is not None:
        xs = np.linspace(min(result.sizes), max(result.sizes), 200)
        axes.plot(xs, fit(xs), color=plots.palette.orange, lw=1.2, zorder=1, label=f"{formula(fit)} MiB")
    if result.stopped is not None:
        axes.axvline(
            result.stopped, color=plots.palette.dark, lw=1, ls=":", label=f"out of memory at {result.stopped:,}"
        )
        axes.set_xlim(right=min(result.stopped, 1.25 * max(result.sizes, default=result.stopped)) * 1.05)
    axes.set(xlabel=result.name, ylabel=f"{counter} (MiB)" if title else "MiB")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    plots.legend(axes)
    return figure


def formula(fit) -> str:
    """A polynomial as text, with four digits: ``0.00123x² + 0.6039x + 437.9``; rounding errors are noughts."""
    powers = ["", "x", "x²", "x³", "x⁴"]
    coefficients = fit.convert().coef
    least = 1e-12 * max(map(abs, coefficients))
    terms = [f"{c if abs(c) > least else 0:.4g}{p}" for c, p in zip(coefficients, powers, strict=False)]
    return " + ".join(reversed(terms)).replace("+ -", "- ")
