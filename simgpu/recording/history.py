"""Runs a workload on the current device, real, stubbed or simulated, and records what it allocates.

A workload is a function `workload(stage)` that calls `stage("forward")` wherever the counters are to be read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch

from simgpu.recording.trace import LETTERS, OF_A_BLOCK, Event, Stage, Trace

MOST_EVENTS = 10_000_000


def record(
    name: str,
    workload: Callable[[Callable[[str], None]], object],
    provenance: Mapping[str, object],
    *,
    where: Callable[[Sequence[Mapping]], str] | None = None,
    nvml: Callable[[], int | None] = lambda: None,
    stacks: str = "all",
) -> tuple[Trace, object]:
    """Returns the trace of `workload(stage)`, and the workload's return value, None after an error.

    `where(frames)` describes an event's origin in a line, from its stack of Python and C++. Without it no stacks are
    recorded; `stacks="python"` omits those of C++, which are slow to read. `nvml()` returns NVML's figure for the
    device and is called at each stage.

    Automatic garbage collection is off during the run, and runs at each stage. Otherwise its time would depend on the
    number of Python objects in the process, not on the workload. Events after the last stage are dropped. An
    `OutOfMemoryError` ends the workload; its message is stored, and a stage "after the error" is added.
    """
    marks: list[tuple[str, dict[str, int], int | None]] = []

    def stage(title: str) -> None:
        gc.collect()
        marks.append((title, dict(torch.cuda.memory_stats()), nvml()))
        torch.cuda.reset_peak_memory_stats()

    made = oom = None
    automatic = gc.isenabled()
    gc.disable()
    context = None if where is None else "all"
    torch.cuda.memory._record_memory_history("all", context=context, stacks=stacks, max_entries=MOST_EVENTS)
    try:
        try:
            made = workload(stage)
        except torch.cuda.OutOfMemoryError as error:
            oom = str(error)
        if oom is not None:
            stage("after the error")
        traces = torch.cuda.memory._snapshot()["device_traces"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        history = traces[torch.cuda.current_device()]
    finally:
        torch.cuda.memory._record_memory_history(None)
        if automatic:
            gc.enable()
    events = _events(history, where)
    return Trace(name, *_cut(events, marks), oom, provenance), made


def _events(history: Sequence[Mapping], where: Callable[[Sequence[Mapping]], str] | None) -> list[Event]:
    """Returns the events of a history as `_snapshot()` gives it."""
    events: list[Event] = []
    block_at: dict[int, int] = {}
    made = 0
    for entry, following in zip(history, [*history[1:], None], strict=False):
        action = entry["action"]
        if action not in LETTERS:
            continue
        address = entry.get("addr", entry.get("address"))
        block = -1
        if action == "alloc":
            block = block_at[address] = made
            made += 1
        elif action in OF_A_BLOCK:
            if action == "free_requested" and _completes(following, address):
                continue
            block = block_at[address]
        events.append(Event(action, entry["size"], block, where(entry["frames"]) if where else ""))
    return events


def _completes(entry: Mapping | None, address: int) -> bool:
    return entry is not None and entry["action"] == "free_completed" and entry["addr"] == address


def _cut(events: list[Event], marks: list[tuple[str, dict[str, int], int | None]]) -> tuple[list[Event], list[Stage]]:
    """Returns the events up to the last stage, and each stage's position among them.

    The position follows from the numbers of allocations and frees counted at the stage.
    """
    stages, at, allocations, frees = [], 0, 0, 0
    for title, stats, used in marks:
        wanted = (stats.get("allocation.all.allocated", 0), stats.get("active.all.freed", 0))
        while (allocations, frees) != wanted and at < len(events):
            allocations += events[at].action == "alloc"
            frees += events[at].action == "free_completed"
            at += 1
        while at < len(events) and events[at].action in ("segment_free", "segment_unmap", "oom"):
            at += 1
        stages.append(Stage(title, at, stats, used))
    return events[:at], stages
