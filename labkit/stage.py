"""Defines what the ledger records: a stage, and its comparison with a prediction and a recorded figure."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.published import Figure
from labkit.units import MIB, mib, verdict

COUNTERS = ("before", "added", "peak", "after", "reserved", "nvidia_smi")
QUESTIONS = {  # the question that a guess about a stage's counter answers
    "before": "allocated before {}",
    "added": "{} adds to allocated",
    "peak": "allocated peak in {}",
    "after": "allocated after {}",
    "reserved": "reserved after {}",
    "nvidia_smi": "nvidia-smi after {}",
}


@dataclass(frozen=True)
class Stage:
    """One stage, in bytes. All but ``nvidia_smi`` are counters of PyTorch's caching allocator."""

    name: str
    before: int
    """allocated when the stage began"""
    peak: int
    """the most bytes allocated at any moment within the stage"""
    after: int
    """allocated when it ended"""
    reserved: int
    """bytes in segments when it ended"""
    nvidia_smi: int | None
    """used on the whole device when it ended; None without a figure from NVML"""
    failed: str = ""
    """the exception that ended the stage, as text"""
    events: tuple[int, int] | None = None
    """the stage's range in the memory history: its first event, and the one after its last"""

    @property
    def added(self) -> int:
        """Returns after - before."""
        return self.after - self.before

    def row(self) -> dict[str, float | None]:
        """Returns the counters in MiB, with the unit in their names."""
        row = {}
        for counter in COUNTERS:
            size = getattr(self, counter)
            row[f"{counter.replace('_', '-')} (MiB)"] = None if size is None else size / MIB
        return row


@dataclass(frozen=True)
class Comparison:
    """A stage's measured bytes with a prediction and, if there is one, a recorded figure."""

    stage: str
    counter: str
    measured: int
    predicted: int
    recorded: Figure | None
    why: str

    def __str__(self) -> str:
        line = f"{self.stage}: predicted {mib(self.predicted, 3)}, measured {mib(self.measured, 3)}"
        return "; ".join(filter(None, (f"{line}, {verdict(self.measured, self.predicted)}", self.beside_recorded())))

    def question(self) -> str:
        """Returns the question that a guess answers: the stage and its counter."""
        return QUESTIONS[self.counter].format(self.stage)

    def beside_recorded(self) -> str:
        """Returns the recorded figure and how the measured one compares with it; "" if there is none."""
        if self.recorded is None:
            return ""
        return f"recorded {self.recorded.short()} MiB, {self.recorded.verdict(self.measured)}"

    def row(self) -> dict[str, object]:
        """Returns the comparison as a row of a table."""
        return {
            "counter": self.counter,
            "predicted": mib(self.predicted),
            "measured": mib(self.measured),
            "measured - predicted": verdict(self.measured, self.predicted),
            "recorded (MiB)": self.recorded.short() if self.recorded else "",
            "measured - recorded": self.recorded.verdict(self.measured) if self.recorded else "",
            "why": self.why,
        }
