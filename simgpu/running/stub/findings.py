"""Collects what the report says of a run on the stub engine, as plain data: parts, lines, the place of the peak."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, astuple

from simgpu.allocator.settings import AllocatorSettings, SettingsError
from simgpu.report.findings import fragmented
from simgpu.report.places import LIBRARY, OWN, TORCH, Place, kind_of
from simgpu.report.replays import Replays
from simgpu.report.track import Description, Track
from simgpu.running.stub import history
from simgpu.running.stub.history import Moment, Windows


def of(
    trace: list[dict],
    count: int,
    owners,
    *,
    peak: int,
    reserved: int,
    failed: bool,
    workspaces: frozenset[int],
    gpu: dict,
    version: str,
) -> dict:
    """The findings of one device's trace. `count`: allocations in all; `peak`, `reserved`: PyTorch's counters, in
    bytes. `gpu`: its "capacity" and its "context" in bytes."""
    kept = sum(event["action"] == "alloc" for event in trace)
    found = history.read(trace, count - kept)
    history.assign(found, owners.marks)
    windows = Windows(owners.windows)
    ends = owners.made
    parts = _at(found, windows, owners, count - kept, peak, failed, workspaces)
    steps = history.step_sizes(found, ends)
    grown = history.grown(found, ends, lambda block: _origin(block, windows))
    rest = {
        "steps_sizes": steps,
        "grown": [[*one.origin, one.blocks, one.nbytes] for one in grown],  # pyright: ignore[reportGeneralTypeIssues]
        **_replayed(found, parts["parts"], peak, reserved, failed, gpu, version),
    }
    track = _track(found, windows, failed, workspaces)
    return parts | rest | {"timeline": None if track is None else asdict(track)}


def _origin(block: history.Block, windows: Windows) -> tuple[str, str]:
    own, library = _places(block.frames)
    return history.operation(block.frames, windows.stage(block.number)), library or own


def _replayed(
    found: history.History, parts: dict, peak: int, reserved: int, failed: bool, gpu: dict, version: str
) -> dict:
    """The smallest capacity that was found to fit, and what other settings of the allocator would reserve."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    try:
        settings = AllocatorSettings.from_environment(os.environ)
    except (SettingsError, NotImplementedError) as error:
        return {"compared": f"the allocator's settings are not modelled: {error}"}
    replays = Replays(found.requests, settings, numbers, **gpu, reserved=reserved)
    attempts = replays.under_settings() if fragmented(parts, reserved, peak, failed) else []
    smallest = None if failed else replays.smallest(peak, reserved)
    return {"smallest": smallest, "compared": replays.unusable, "attempts": [list(astuple(one)) for one in attempts]}


def _track(found: history.History, windows: Windows, failed: bool, workspaces: frozenset[int]) -> Track | None:
    """The timeline, with what is known of each block."""
    texts: dict[tuple, tuple[str, str, str]] = {}

    def describe(block: history.Block) -> Description:
        stage = windows.stage(block.number)
        key = (stage, *((one["filename"], one["line"], one["name"]) for one in block.frames))
        if key not in texts:
            texts[key] = history.operation(block.frames, stage), *_places(block.frames)
        operator, own, library = texts[key]
        return Description(block.size, history.part(block, windows, failed, workspaces), operator, stage, own, library)

    moment = found.failed if failed and found.failed is not None else found.peak
    return None if moment is None else Track.of(found.timeline, moment.events, describe)


def _at(found, windows, owners, forgotten: int, peak: int, failed: bool, workspaces: frozenset[int]) -> dict:
    """What was allocated at the peak, or where memory ran out."""
    moment = found.failed if failed and found.failed is not None else found.peak
    if moment is None:
        return {"parts": {}, "lines": [], "at": None, "failure": None, "failures": found.failures}
    sizes: Counter[str] = Counter()
    stacks: dict[tuple, list[str]] = {}
    lines: Counter[tuple] = Counter()
    blocks: Counter[tuple] = Counter()
    for block in moment.blocks:
        part = history.part(block, windows, failed, workspaces)
        stage = windows.stage(block.number)
        own, library = _places(block.frames)
        key = (part, history.operation(block.frames, stage), stage, own, library)
        sizes[part] += block.size
        lines[key] += block.size
        blocks[key] += 1
        if key not in stacks:
            stacks[key] = _stack(block.frames)
    event = moment.event
    exact = moment.allocated if failed else peak
    return {
        "parts": history.parts(sizes, moment, exact),
        "lines": [[nbytes, blocks[key], *key, stacks[key]] for key, nbytes in history.largest(lines)],
        "at": _spot(moment, windows, owners),
        "failure": [event["size"], event.get("device_free", 0)] if event["action"] == "oom" else None,
        "failures": found.failures,
        "forgotten": forgotten,
    }


def _places(frames) -> tuple[str, str]:
    """The innermost place of the user's own, and that of a library inside of it, as text."""
    library = ""
    for frame in frames:
        kind = kind_of(frame["filename"])
        if kind == OWN and not history.is_generated(frame["filename"]):
            return str(_place(frame)), library
        if kind == LIBRARY and not library and not frame["filename"].startswith("<frozen"):
            library = str(_place(frame))
    return "", library


def _place(frame: dict) -> Place:
    return Place(frame["filename"], frame["line"], frame["name"])


def _spot(moment: Moment, windows: Windows, owners) -> dict:
    event = moment.event
    frames = event.get("frames", ())
    stage = windows.stage(moment.number - (event["action"] == "alloc"))
    own, library = _places(frames)
    return {
        "operator": history.operation(frames, stage),
        "asked": event["size"],
        "stage": stage,
        "steps": bisect_right(owners.made, moment.number),
        "place": own or library,
        "stack": _stack(frames),
    }


def _stack(frames) -> list[str]:
    """The lines of a stack that are not PyTorch's, innermost first."""
    shown = [one for one in frames if kind_of(one["filename"]) != TORCH and not history.is_generated(one["filename"])]
    return [text for text in map(str, map(_place, shown)) if "runpy" not in text]
