"""What a tool says of one workload, and what a tool is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Protocol

from benchmarks.league.workloads import Workload

GPUS = ("T4", "A100-80GB", "H100")


class Refused(Exception):
    """A tool has no answer to a workload; the message says why."""


@dataclass
class Answer:
    """By GPU: `peak`, allocated bytes of the two steps (None where they run out of memory), and `fits`.

    `refused`: why there is neither, else "". `seconds`: processor time of one answer.
    """

    peak: dict[str, int | None] = field(default_factory=dict)
    fits: dict[str, bool] = field(default_factory=dict)
    refused: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict:
        """For the stored file."""
        return asdict(self)


class Estimator(Protocol):
    """A module of `benchmarks.league.tools`: an estimator whose figure does not depend on the GPU."""

    TITLE: str
    NEEDS: str  # the package it lies in, "" for none
    LIMITS: str  # what it does not know, in its own documentation's words or ours

    def peak(self, workload: Workload) -> float:
        """Bytes. Raises Refused where the tool has no way to say the workload."""
        ...

    def fits(self, peak: float, gpu: str) -> bool:
        """Whether a peak fits the GPU, by the tool's own rule where it has one."""
        ...


def within(peak: float, gpu: str) -> bool:
    """The rule for tools without one: the GPU's memory less what a process's CUDA context holds."""
    from simgpu.gpus.specs import spec

    return peak <= spec(gpu).total_memory - spec(gpu).context
