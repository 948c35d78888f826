"""A record of lanes: who did what from when to when, the host, workers, copy engines, kernels, links to other GPUs.

Times are seconds of the simulated GPU's clock.
"""

from typing import NamedTuple

HOST, COMPUTE, COPY_TO_GPU, COPY_TO_HOST = "host", "compute", "copy to GPU", "copy to host"
COMMUNICATION = "communication"
PINNING = "pinning thread"
ISSUES = "issues operators"


def worker(number: int) -> str:
    """The lane of a DataLoader's worker."""
    return f"worker {number}"


class Interval(NamedTuple):
    """What one lane does from `start` to `end`, in seconds."""

    lane: str
    name: str
    start: float
    end: float


class Lanes:
    """Intervals as they are issued; each lane's are in the order of their making."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []

    def note(self, lane: str, name: str, start: float, end: float) -> None:
        """Keeps an interval, if it has a length."""
        if end > start:
            self.intervals.append(Interval(lane, name, start, end))
