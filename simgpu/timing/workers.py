"""The time of a DataLoader's workers: on lanes of their own, beside the main process's.

In a worker process there is no clock. What works there is noted, sent along with the batch, and put on the clock by
the main process, which knows when it asked for the batch. A worker does one batch after the other; the thread that pins
takes each when it is ready. The times follow from what was noted, so that two runs of a program give the same.
"""

import threading

from simgpu.timing import lanes
from simgpu.timing.clock import Clock, Engine


class WorkerHost:
    """What a worker's process did since it last sent a batch: names and seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float]] = []

    def pass_time(self, seconds: float, name: str = "host work") -> None:
        """The worker works. ValueError if `seconds` is negative or no end."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"the host cannot work for {seconds} s")
        self._spans.append((name, seconds))

    def taken(self) -> list[tuple[str, float]]:
        """What was done since this was last asked."""
        spans, self._spans = self._spans, []
        return spans


here: WorkerHost | None = None
"""Of this process, if it is a worker of a DataLoader that runs on a simulated GPU."""


class Pinning(threading.local):
    """Whether the thread that asks is a DataLoader's, which pins beside the host: `Loading` puts its time on a lane."""

    apart = False


pinning = Pinning()


class Loading:
    """When the batches are ready that `workers` workers make for the host of `clock`."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self._clock = clock
        self._free = [clock.host] * workers
        self._pinning = Engine()
        self._asked: dict[int, tuple[float, int]] = {}  # when which worker was asked, by the batch's number

    def asked(self, batch: int, worker: int) -> None:
        """The host asks a worker for a batch, now."""
        self._asked[batch] = self._clock.host, worker

    def taken(self, batch: int, spans: list[tuple[str, float]], pinned: int | None) -> None:
        """The host takes a batch, and waits until it is ready. `spans`: what its worker did for it. `pinned`: bytes
        that the thread that pins has copied, or None without such a thread."""
        asked, worker = self._asked.pop(batch)
        ready = max(asked, self._free[worker])
        record = self._clock.lanes
        for name, seconds in spans:
            if record is not None:
                record.note(lanes.worker(worker), f"batch {batch}: {name}", ready, ready + seconds)
            ready += seconds
        self._free[worker] = ready
        if pinned is not None:
            seconds = self._clock.pinning(pinned)
            begin = self._pinning.take(ready, seconds, asked)
            ready = begin + seconds
            if record is not None:
                record.note(lanes.PINNING, f"batch {batch}", begin, ready)
        self._clock.wait_for_batch(ready)

    def again(self) -> None:
        """A new epoch with the same workers."""
        self._asked.clear()
