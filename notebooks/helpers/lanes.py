"""Records which work ran when on the GPU, in lanes: copies in one, matmuls in another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

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
        return plots.lanes(self.pieces(), about)
