"""What the ledger writes down: a stage, and a stage beside what was predicted and recorded."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.published import Figure
from labkit.units import MIB, digits, verdict

COUNTERS = ("before", "added", "peak", "after", "reserved", "nvidia_smi")


@dataclass(frozen=True)
class Stage:
    """One stage, in bytes. All but ``nvidia_smi`` are counters of PyTorch's caching allocator."""

    name: str
    before: int
    """allocated when the stage began"""
    peak: int
    """most allocated at any moment within the stage"""
    after: int
    """allocated when it ended"""
    reserved: int
    """held in segments when it ended"""
    nvidia_smi: int | None
    """used on the whole device when it ended; None where NVML cannot tell"""
    failed: str = ""
    """the exception that ended the stage, as text"""
    events: tuple[int, int] | None = None
    """the stage's part of the memory history, from and up to which event"""

    @property
    def added(self) -> int:
        """after - before"""
        return self.after - self.before

    def row(self) -> dict[str, float | None]:
        """The counters in MiB, with the unit in their names."""
        row = {}
        for counter in COUNTERS:
            size = getattr(self, counter)
            row[f"{counter.replace('_', '-')} (MiB)"] = None if size is None else size / MIB
        return row


@dataclass(frozen=True)
class Comparison:
    """A stage's measured bytes beside a prediction and, if there is one, a recorded figure."""

    stage: str
    counter: str
    measured: int
    predicted: int
    recorded: Figure | None
    why: str

    def __str__(self) -> str:
        found = verdict(self.measured, self.predicted)
        unit = " MiB" if found == "equal" else ""  # a difference brings its own
        line = f"{self.stage}: predicted {digits(self.predicted, 3)}, measured {digits(self.measured, 3)}"
        line += f"{unit}, {found}"
        if self.recorded is not None:
            line += f"; recorded {self.recorded.mib}, {self.recorded.verdict(self.measured)}"
        return line

    def row(self) -> dict[str, object]:
        """The comparison as a row of a table, every digit shown."""
        return {
            "counter": self.counter,
            "predicted (MiB)": digits(self.predicted),
            "measured (MiB)": digits(self.measured),
            "measured - predicted": verdict(self.measured, self.predicted),
            "recorded (MiB)": self.recorded.mib if self.recorded else "",
            "measured - recorded": self.recorded.verdict(self.measured) if self.recorded else "",
            "why": self.why,
        }
