"""The time of a DataLoader's workers, on lanes of their own, concurrent with the main process.

A worker process has no clock. Its work is noted, sent along with the batch, and put on the clock by the main process,
which knows when it requested the batch. A worker makes one batch after the other, and the pinning thread takes each
when it is ready. The times follow from what was noted, so that two runs of a program give the same.
"""

import threading

from simgpu.clock import tracks
from simgpu.clock.clock import Clock, Engine


class WorkerHost:
    """Collects what a worker process did since it last sent a batch: names and seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float]] = []

    def pass_time(self, seconds: float, name: str = "host work") -> None:
        """Notes `seconds` of work called `name`. Raises ValueError if they are negative or infinite."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"the host cannot work for {seconds} s")
        self._spans.append((name, seconds))

    def taken(self) -> list[tuple[str, float]]:
        """Returns what was noted since the last call, and clears it."""
        spans, self._spans = self._spans, []
        return spans


here: WorkerHost | None = None
"""The host of this process, if it is a DataLoader worker of a program on a simulated GPU."""


class Pinning(threading.local):
    """Holds whether this thread is a DataLoader's pinning thread, whose time `Loading` puts on a lane."""

    apart = False


pinning = Pinning()


class Loading:
    """Computes when the batches of `workers` workers are ready for the host of `clock`."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self._clock = clock
        self._free = [clock.host] * workers
        self._pinning = Engine()
        self._asked: dict[int, tuple[float, int]] = {}  # time of the request and worker, by the batch's number

    def asked(self, batch: int, worker: int) -> None:
        """Notes that the host requests a batch from a worker now."""
        self._asked[batch] = self._clock.host, worker

    def taken(self, batch: int, spans: list[tuple[str, float]], pinned: int | None) -> None:
        """Makes the host take a batch, and wait until it is ready.

        `spans`: what its worker did for it. `pinned`: bytes that the pinning thread copied, or None without such a
        thread.
        """
        asked, worker = self._asked.pop(batch)
        ready = max(asked, self._free[worker])
        record = self._clock.lanes
        for name, seconds in spans:
            if record is not None:
                record.note(tracks.worker(worker), f"batch {batch}: {name}", ready, ready + seconds)
            ready += seconds
        self._free[worker] = ready
        if pinned is not None:
            seconds = self._clock.pinning(pinned)
            begin = self._pinning.take(ready, seconds, asked)
            ready = begin + seconds
            if record is not None:
                record.note(tracks.PINNING, f"batch {batch}", begin, ready)
        self._clock.wait_for_batch(ready)

    def again(self) -> None:
        """Starts a new epoch with the same workers."""
        self._asked.clear()
