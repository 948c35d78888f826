"""What the report says of a run on the stub engine, as plain data: parts, lines and the place of the peak."""

from __future__ import annotations

from collections import Counter

from simgpu.report.places import LIBRARY, OWN, TORCH, Place, kind_of
from simgpu.running.stub import history
from simgpu.running.stub.history import Moment, Windows


def of(trace: list[dict], count: int, owners, peak: int, failed: bool, workspaces: frozenset[int]) -> dict:
    """The findings of one device's trace. `count`: allocations in all; `peak`: PyTorch's counter, in bytes."""
    kept = sum(event["action"] == "alloc" for event in trace)
    found = history.read(trace, count - kept)
    history.assign(found, owners.marks)
    windows = Windows(owners.windows)
    moment = found.failed if failed and found.failed is not None else found.peak
    if moment is None:
        return {"parts": {}, "lines": [], "at": None, "failure": None, "failures": found.failures}
    sizes: Counter[str] = Counter()
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
    event = moment.event
    exact = moment.allocated if failed else peak
    return {
        "parts": history.parts(sizes, moment, exact),
        "lines": [[nbytes, blocks[key], *key] for key, nbytes in history.largest(lines)],
        "at": _spot(moment, windows, owners),
        "failure": [event["size"], event.get("device_free", 0)] if event["action"] == "oom" else None,
        "failures": found.failures,
        "forgotten": count - kept,
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
    steps = sum(kind == "step" and end <= moment.number for kind, _, end in windows.windows)
    shown = [one for one in frames if kind_of(one["filename"]) != TORCH and not history.is_generated(one["filename"])]
    stack = [str(_place(frame)) for frame in shown]
    return {
        "operator": history.operation(frames, stage),
        "asked": event["size"],
        "stage": stage,
        "steps": min(steps, owners.steps),
        "place": own or library,
        "stack": [one for one in stack if "runpy" not in one],
    }
