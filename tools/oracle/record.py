"""Run a workload on the current device, real, stubbed or simulated, and write down what it allocated."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import torch

from tools.oracle import labels
from tools.oracle.trace import LETTERS, OF_A_BLOCK, Event, Stage, Trace

MOST_EVENTS = 10_000_000


def record(name: str, workload: Callable[[Callable[[str], None]], object], provenance: Mapping[str, str]) -> Trace:
    """The trace of `workload(stage)`, which calls `stage("forward")` wherever the counters are to be read.

    Automatic garbage collection is off meanwhile, and done at each stage: when it runs depends on how many
    Python objects a process has made, not on the workload. Events after the last stage are left out. An
    `OutOfMemoryError` ends the workload; its text is kept, and a stage "after the error" is added.
    """
    marks: list[tuple[str, dict[str, int]]] = []

    def stage(title: str) -> None:
        gc.collect()
        marks.append((title, dict(torch.cuda.memory_stats())))
        torch.cuda.reset_peak_memory_stats()

    oom = None
    automatic = gc.isenabled()
    gc.disable()
    torch.cuda.memory._record_memory_history("all", context="all", stacks="all", max_entries=MOST_EVENTS)
    try:
        try:
            workload(stage)
        except torch.cuda.OutOfMemoryError as error:
            oom = str(error)
        if oom is not None:
            stage("after the error")
        history = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(None)
        if automatic:
            gc.enable()
    events = _events(history)
    return Trace(name, *_cut(events, marks), oom, provenance)


def _events(history: Sequence[Mapping]) -> list[Event]:
    """The events of a history as `_snapshot()` gives it."""
    events: list[Event] = []
    block_at: dict[int, int] = {}
    made = 0
    for entry, following in zip(history, [*history[1:], None], strict=True):
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
        events.append(Event(action, entry["size"], block, labels.where(entry["frames"])))
    return events


def _completes(entry: Mapping | None, address: int) -> bool:
    return entry is not None and entry["action"] == "free_completed" and entry["addr"] == address


def _cut(events: list[Event], marks: list[tuple[str, dict[str, int]]]) -> tuple[list[Event], list[Stage]]:
    """Each stage's place among the events, by the allocations and frees counted there; drop later events."""
    stages, at, allocations, frees = [], 0, 0, 0
    for title, stats in marks:
        wanted = (stats.get("allocation.all.allocated", 0), stats.get("active.all.freed", 0))
        while (allocations, frees) != wanted and at < len(events):
            allocations += events[at].action == "alloc"
            frees += events[at].action == "free_completed"
            at += 1
        while at < len(events) and events[at].action in ("segment_free", "segment_unmap", "oom"):
            at += 1
        stages.append(Stage(title, at, stats))
    return events[:at], stages
