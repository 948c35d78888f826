"""Records which work ran when on the GPU, in lanes: copies in one, matmuls in another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import torch
from matplotlib.figure import Figure

from labkit import plots


class Lanes:
    """Records when each piece of work began and ended, with a pair of CUDA events on the stream that it runs on.

    >>> lanes = Lanes()
    >>> with torch.cuda.stream(copying), lanes("copy", "layer 1"):
    ...     buffer.copy_(weight, non_blocking=True)
    >>> lanes.plot("24 layers of 4096 × 4096")

    Time zero is when the object is made, on the current stream. On a simulated GPU the events read its clock, which is
    an estimate. Raises ``RuntimeError`` without a GPU.
    """

    def __init__(self):
        self._pieces: list[tuple[str, str, torch.cuda.Event, torch.cuda.Event]] = []
        self._begin = torch.cuda.Event(enable_timing=True)
        self._begin.record()

    @contextlib.contextmanager
    def __call__(self, lane: str, name: object = "") -> Iterator[None]:
        """Records the work issued to the current stream inside the ``with`` as a piece of ``lane``."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._pieces.append((lane, str(name), start, end))

    def pieces(self) -> dict[str, list[tuple[float, float, str]]]:
        """Waits for the GPU and returns ``{lane: [(begin, end, name), ...]}``, in milliseconds."""
        torch.cuda.synchronize()
        found: dict[str, list[tuple[float, float, str]]] = {}
        for lane, name, start, end in self._pieces:
            times = self._begin.elapsed_time(start), self._begin.elapsed_time(end)
            found.setdefault(lane, []).append((*times, name))
        return found

    def plot(self, about: str = ""):
        """Draws the lanes over time; ``about`` names the model and its size."""
        return plot_lanes(self.pieces(), about)


def plot_lanes(pieces: Mapping[str, Sequence[tuple[float, float, str]]], about: str = "") -> Figure:
    """Work over time, a lane for each kind: ``{lane: [(begin, end, name), ...]}`` in milliseconds.

    The alternative text counts the pieces: their times differ between a real GPU and the simulated one.
    """
    last = max((end for row in pieces.values() for _, end, _ in row), default=0)
    said = "; ".join(f"{lane} has {len(row)} pieces" for lane, row in pieces.items()) or "Nothing was done"
    figure, axes = plots.new("Lanes over time", f"{said}.", about=about, xlabel="ms", height=1.2 + 0.5 * len(pieces))
    for y, ((_, row), fill) in enumerate(zip(pieces.items(), cycle(plots.palette[:7]), strict=False)):
        for begin, end, name in row:
            axes.barh(y, end - begin, left=begin, height=0.7, color=fill, ec="white", lw=0.6)
            if end - begin > 0.02 * last:
                axes.text((begin + end) / 2, y, name, ha="center", va="center", fontsize=7, color="white")
    axes.set_yticks(range(len(pieces)), list(pieces))
    axes.set(xlim=(0, last or 1))
    axes.invert_yaxis()
    return figure
