"""Compares a recording with the simulated GPU of the same kind: events, peaks, reserved memory, NVML's figure, time."""

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
"""Bytes of the allocator's usual large segment (kLargeBuffer): the accepted error of reserved memory."""


@dataclass(frozen=True)
class Replay:
    """Holds one workload, `recorded` on a device and `simulated`."""

    recorded: Trace
    simulated: Trace

    @property
    def events(self) -> tuple[int, int]:
        """Returns the number of events in the recording, and how many of them the simulation has in the same order.

        Consecutive frees may be in another order. At the end of an autocast region it is the order of a hash map.
        """
        ours, theirs = _steps(self.simulated.events), _steps(self.recorded.events)
        wrong = sum(one != other for one, other in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
        return len(theirs), max(0, len(theirs) - wrong)

    @property
    def stages(self) -> list[tuple[Stage, Stage]]:
        """Returns pairs of stages, recorded and simulated."""
        return list(zip(self.recorded.stages, self.simulated.stages, strict=False))

    @property
    def same_course(self) -> bool:
        """Returns whether both went through the same stages to the same end."""
        names = [[stage.name for stage in trace.stages] for trace in (self.recorded, self.simulated)]
        return names[0] == names[1] and (self.recorded.oom is None) == (self.simulated.oom is None)

    @property
    def peak_error(self) -> int:
        """Returns the largest error in bytes of a stage's peak of allocated memory, or of its allocated memory at the
        end.
        """
        pairs = [(getattr(a, of), getattr(b, of)) for a, b in self.stages for of in ("peak", "allocated")]
        return max((abs(theirs - ours) for theirs, ours in pairs), default=0)

    @property
    def reserved_error(self) -> int:
        """Returns the largest error in bytes of the reserved memory at a stage's end."""
        return max((abs(a.reserved - b.reserved) for a, b in self.stages), default=0)

    @property
    def outside(self) -> list[tuple[int, int]]:
        """Returns for each stage the bytes that NVML shows beyond reserved memory and earlier use: (recorded,
        simulated).

        These are the CUDA context, loaded kernels, and allocations of libraries.
        """
        return [
            (theirs, ours)
            for a, b in self.stages
            if (theirs := _outside(self.recorded, a)) is not None and (ours := _outside(self.simulated, b)) is not None
        ]

    @property
    def time_error(self) -> float | None:
        """Returns the relative error of a step's simulated time; None if one was not timed."""
        ours, theirs = self.simulated.median_ms, self.recorded.median_ms
        return ours / theirs - 1 if ours and theirs else None

    def differences(self) -> list[str]:
        """Returns the errors in memory: allocated bytes have to be equal, reserved bytes within one segment."""
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
    """Runs a recording's workload on the simulated GPU of its kind, with the memory its driver reported.

    Raises ValueError if the workload was removed or has changed since, and for an unknown GPU.
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
    """Returns a row for each replay: what is equal, the error of the rest, and the times of a step."""
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
    """Returns (action, bytes) of each event, with consecutive frees sorted."""
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
