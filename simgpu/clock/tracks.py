"""A record of lanes: what the host, workers, copy engines, kernels and links to other GPUs did at which time.

Times are seconds of the simulated GPU's clock.
"""

from typing import NamedTuple

HOST, COMPUTE, COPY_TO_GPU, COPY_TO_HOST = "host", "compute", "copy to GPU", "copy to host"
COMMUNICATION = "communication"
PINNING = "pinning thread"
ISSUES = "issues operators"


def worker(number: int) -> str:
    """Returns the lane name of a DataLoader worker."""
    return f"worker {number}"


class Interval(NamedTuple):
    """Holds what one lane does from `start` to `end`, in seconds."""

    lane: str
    name: str
    start: float
    end: float


class Lanes:
    """Collects intervals as they are issued; those of each lane are in the order of their creation."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []

    def note(self, lane: str, name: str, start: float, end: float) -> None:
        """Appends an interval if its duration is positive."""
        if end > start:
            self.intervals.append(Interval(lane, name, start, end))
