"""Estimates the least time of an operator by the roofline model, and draws the roofline of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.figure import Figure

from labkit import plots


class Roofline(NamedTuple):
    """Holds the least seconds that an operator takes, and its bottleneck: ``"compute"``, ``"memory"`` or ``"host"``."""

    seconds: float
    bound: str


def roofline(flop: float, nbytes: float, peak: float, bandwidth: float, launch: float = 0.0) -> Roofline:
    """Returns a lower bound of an operator's time: the maximum over its arithmetic, its bytes, and its launch by the
    host.

    ``flop`` is the number of operations, and ``peak`` the rate per second. ``nbytes`` are read and written at
    ``bandwidth`` bytes per second, and ``launch`` is the host's time in seconds if it issues one operator after
    another. The bound holds for tensors larger than the caches, at rates that the GPU reaches with large ones; partly
    filled tiles make a matmul slower. For a step of many operators, add up each of the three first, because the host
    runs ahead. Raises ``ValueError`` for a rate that is not positive or a size that is negative.
    """
    if not (peak > 0 and bandwidth > 0 and min(flop, nbytes, launch) >= 0):
        raise ValueError(f"roofline: rates above 0 and sizes of 0 or more; {flop, nbytes, peak, bandwidth, launch}")
    times = {"compute": flop / peak, "memory": nbytes / bandwidth, "host": launch}
    bound = max(times, key=times.__getitem__)
    return Roofline(times[bound], bound)


def plot_roofline(
    dots: Mapping[str, Mapping[str, tuple[float, float]]], peak: float, bandwidth: float, about: str = ""
) -> Figure:
    """The roofline of a GPU, log-log, with operators as dots: ``{kind: {operator: (FLOP per byte, FLOP a second)}}``.

    ``peak`` in operations and ``bandwidth`` in bytes a second are the roof: the slope ends where they meet, at ``peak /
    bandwidth``. Each kind has a colour. Raises ``ValueError`` for a number that is not above 0.
    """
    every = [point for kind in dots.values() for point in kind.values()]
    if min(peak, bandwidth, *(number for point in every for number in point)) <= 0:
        raise ValueError("a roofline has logarithmic axes: every number is above 0")
    ridge = peak / bandwidth
    said = [
        f"{n} {_digits(x)} FLOP per byte, {_digits(y / 1e12)} TFLOP/s" for k in dots.values() for n, (x, y) in k.items()
    ]
    alt = f"The roof rises to {peak / 1e12:.3g} TFLOP/s at {ridge:.3g} FLOP per byte, and is flat from there. "
    labels = {"xlabel": "operations per byte (FLOP per B)", "ylabel": "rate (TFLOP per s)"}
    figure, axes = plots.new("Roofline", alt + "; ".join(said) + ".", about=about, height=4.2, **labels)
    left, right = min(0.1, *(x / 2 for x, _ in every)), max(20 * ridge, *(8 * x for x, _ in every))
    roof = [bandwidth * left / 1e12, peak / 1e12, peak / 1e12]
    axes.plot([left, ridge, right], roof, color=plots.palette.dark, lw=1.5, zorder=1)
    axes.axvline(ridge, color=plots.palette.grey, ls=":", lw=1, zorder=1)
    axes.text(ridge, roof[0], f" {ridge:.0f} FLOP per B", color=plots.palette.dark, fontsize=8)
    for (kind, points), colour_of in zip(dots.items(), plots.palette[:7], strict=False):
        axes.plot(*zip(*((x, y / 1e12) for x, y in points.values()), strict=True), "o", color=colour_of, label=kind)
        for name, (x, y) in points.items():  # above the slope, and under the flat part
            offset, side = ((-5, 4), "right") if x <= ridge else ((4, -11), "left")
            beside = {"xytext": offset, "textcoords": "offset points", "fontsize": 7, "ha": side}
            axes.annotate(name, (x, y / 1e12), **beside)
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    plots.legend(axes)
    return figure


def _digits(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point: 0.123, 12.3, 12,345."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
