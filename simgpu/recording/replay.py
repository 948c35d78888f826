"""A recording beside the simulated GPU of the same kind: events, peaks, reserved memory, NVML's figure, time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import simgpu
from simgpu.recording import worker
from simgpu.recording.provenance import of_workload
from simgpu.recording.trace import Event, Stage, Trace
from simgpu.recording.workloads import WORKLOADS

if TYPE_CHECKING:
    import pandas as pd

SEGMENT = 20 * 2**20
"""Bytes of the allocator's usual large segment (kLargeBuffer): how far reserved memory may be off."""


@dataclass(frozen=True)
class Replay:
    """One workload, `recorded` on a device and `simulated`."""

    recorded: Trace
    simulated: Trace

    @property
    def events(self) -> tuple[int, int]:
        """How many events the recording has, and how many of them are also the simulated ones, in the same order.

        Blocks that are freed one directly after the other may be so in another order: at the end of an autocast region
        it is that of a hash map.
        """
        ours, theirs = _steps(self.simulated.events), _steps(self.recorded.events)
        wrong = sum(one != other for one, other in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
        return len(theirs), max(0, len(theirs) - wrong)

    @property
    def stages(self) -> list[tuple[Stage, Stage]]:
        """Each stage, recorded and simulated."""
        return list(zip(self.recorded.stages, self.simulated.stages, strict=False))

    @property
    def same_course(self) -> bool:
        """Whether both went through the same stages, to the same end."""
        names = [[stage.name for stage in trace.stages] for trace in (self.recorded, self.simulated)]
        return names[0] == names[1] and (self.recorded.oom is None) == (self.simulated.oom is None)

    @property
    def peak_error(self) -> int:
        """Most bytes that a stage's peak of allocated memory, or what is allocated at its end, is off by."""
        pairs = [(getattr(a, of), getattr(b, of)) for a, b in self.stages for of in ("peak", "allocated")]
        return max((abs(theirs - ours) for theirs, ours in pairs), default=0)

    @property
    def reserved_error(self) -> int:
        """Most bytes that the reserved memory at a stage's end is off by."""
        return max((abs(a.reserved - b.reserved) for a, b in self.stages), default=0)

    @property
    def outside(self) -> list[tuple[int, int]]:
        """At each stage the bytes that NVML shows besides reserved memory and what was there before: (recorded,
        simulated). They are the CUDA context, loaded kernels, and what libraries took for themselves.
        """
        return [
            (theirs, ours)
            for a, b in self.stages
            if (theirs := _outside(self.recorded, a)) is not None and (ours := _outside(self.simulated, b)) is not None
        ]

    @property
    def time_error(self) -> float | None:
        """How far the simulated time of a step is off, as a share of the recorded; None if one was not timed."""
        ours, theirs = self.simulated.median_ms, self.recorded.median_ms
        return ours / theirs - 1 if ours and theirs else None

    def differences(self) -> list[str]:
        """What of memory is not as it should be: allocated to the byte, reserved within one segment."""
        found = []
        if not self.same_course:
            found.append(f"recorded {_course(self.recorded)}, simulated {_course(self.simulated)}")
        of, equal = self.events
        if equal < of:
            found.append(f"{of - equal} of {of} events")
        if self.peak_error:
            found.append(f"allocated by {self.peak_error:,} B")
        if self.reserved_error > SEGMENT:
            found.append(f"reserved by {self.reserved_error:,} B")
        return found


def replay(recording: Trace, timed: bool = True) -> Replay:
    """The recording and the same workload on the simulated GPU of its kind, with the memory its driver reported.

    Raises ValueError if its workload has gone or changed since, and for a GPU that labkit does not know.
    """
    name, kept = recording.workload, recording.provenance
    if name not in WORKLOADS:
        raise ValueError(f"{name!r} is recorded, and no longer a workload of simgpu.recording.workloads")
    now = of_workload(WORKLOADS[name], worker.settings_of(name))
    changed = [f"{key} {kept.get(key)!r}, now {value!r}" for key, value in now.items() if kept.get(key) != value]
    if changed:
        raise ValueError(f"the workload {name!r} has changed since it was recorded: {'; '.join(changed)}")
    with worker.in_environment_of(name), simgpu.simulated_gpu(kept["gpu"], kept["total memory"]):
        return Replay(recording, worker.recorded(name, {}, timed))


def table(replays: Sequence[Replay]) -> pd.DataFrame:
    """A row for each replay: what is equal, by how much the rest is off, and the times of a step."""
    import pandas as pd

    return pd.DataFrame([_row(one) for one in replays]).set_index("workload")


def _row(one: Replay) -> dict[str, object]:
    of, equal = one.events
    outside = one.outside[-1] if one.outside else (None, None)
    return {
        "workload": one.recorded.workload,
        "events equal": f"{equal} of {of}",
        "peak (MiB)": one.recorded.peak / 2**20,
        "allocated off by (B)": one.peak_error,
        "reserved off by (MiB)": one.reserved_error / 2**20,
        "outside PyTorch (MiB)": None if outside[0] is None else outside[0] / 2**20,
        "simulated outside (MiB)": None if outside[1] is None else outside[1] / 2**20,
        "step (ms)": one.recorded.median_ms,
        "simulated step (ms)": one.simulated.median_ms,
        "time error (%)": None if one.time_error is None else 100 * one.time_error,
    }


def _steps(events: Sequence[Event]) -> list[tuple[str, int]]:
    """(action, bytes) of each event, those of frees in an unbroken run sorted."""
    steps: list[tuple[str, int]] = []
    run: list[tuple[str, int]] = []
    for event in events:
        if event.action == "free_completed":
            run.append((event.action, event.size))
            continue
        steps += [*sorted(run), (event.action, event.size)]
        run.clear()
    return steps + sorted(run)


def _outside(trace: Trace, stage: Stage) -> int | None:
    return None if stage.nvml is None or trace.idle is None else stage.nvml - trace.idle - stage.reserved


def _course(trace: Trace) -> str:
    end = "out of memory" if trace.oom is not None else "to its end"
    return f"{len(trace.stages)} stages, {end}"
