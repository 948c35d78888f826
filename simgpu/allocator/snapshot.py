"""Memory snapshots: creates them from an allocator's segments, writes them, reads them safely, compares them.

Format: `torch/csrc/cuda/memory_snapshot.cpp` of torch 2.13. A file is a pickle of dictionaries, lists, tuples, strings
and numbers, as `torch.cuda.memory._dump_snapshot` writes it and `torch.cuda._memory_viz` reads it.
"""

from __future__ import annotations

import difflib
import io
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from simgpu.allocator import pickle_scan
from simgpu.allocator.blocks import Block, Segment

PARTS = {"segments": list, "device_traces": list}
"""The parts of every snapshot since torch 2.0; `allocator_settings` and the rest came later."""

SEGMENT = {"address": int, "total_size": int, "blocks": list}
BLOCK = {"size": int, "state": str}
EVENT = {"action": str, "size": int}
"""The fields that each segment, block and event has in every version since 2.0."""

MEMORY_ACTIONS = frozenset(
    {"alloc", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"}
)
"""The events that change memory or fail to; `free_requested` and `snapshot` do not."""


class SnapshotError(ValueError):
    """Raised for a file that is not a memory snapshot, or not a complete one; the message says what is wrong."""


def describe_segments(segments: Iterable[Segment], device: int = 0) -> list[dict]:
    """Returns each segment with its blocks, by address, as `torch.cuda.memory_snapshot()` does.

    An expandable segment gives one entry per contiguous range that has memory.
    """
    entries = [_describe(blocks, device) for segment in segments for blocks in _mapped_ranges(segment)]
    return sorted(entries, key=lambda entry: entry["address"])


def _mapped_ranges(segment: Segment) -> Iterator[list[Block]]:
    blocks: list[Block] = []
    for block in segment:
        if block.mapped:
            blocks.append(block)
        elif blocks:
            yield blocks
            blocks = []
    if blocks:
        yield blocks


def _describe(blocks: list[Block], device: int) -> dict:
    first = blocks[0]
    active = [block for block in blocks if block.active]
    return {
        "device": device,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": first.pool.id,
        "is_expandable": bool(first.segment.granule),
        "frames": list(first.segment_frames or ()),
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": _state(block),
                "frames": list(block.frames or ()),
            }
            for block in blocks
        ],
    }


def _state(block: Block) -> str:
    if block.allocated:
        return "active_allocated"
    return "active_pending_free" if block.active else "inactive"


def write(snapshot: dict, path: str | os.PathLike) -> None:
    """Writes a snapshot to a file that PyTorch's tools can read.

    Raises SnapshotError if it is not a snapshot, and OSError if the file cannot be written.
    """
    try:
        _check(snapshot)
    except SnapshotError as error:
        raise SnapshotError(f"what was given: {error}") from None
    Path(path).write_bytes(pickle.dumps(snapshot))


def read(path: str | os.PathLike) -> dict:
    """Reads a snapshot, also one that `torch.cuda.memory._dump_snapshot` wrote on a real GPU.

    Nothing in the file is executed: a pickle that names any class or function is refused. Reading uses at most a few
    times the size of the file in memory. Raises SnapshotError if the file is broken, truncated, lacks something that
    PyTorch writes, or is something else, and OSError if it cannot be opened.
    """
    content = Path(path).read_bytes()
    try:
        pickle_scan.check(content)
        snapshot = _BuiltinsOnly(io.BytesIO(content)).load()
        return _check(snapshot)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from None
    except ValueError as error:
        raise SnapshotError(f"{path}: {error}") from None
    except Exception as error:  # pickle raises errors of any kind for broken bytes
        raise SnapshotError(f"{path}: no pickle, or a broken one ({error})") from None


class _BuiltinsOnly(pickle.Unpickler):
    """Builds dictionaries, lists, tuples, strings and numbers, and nothing that has to be imported."""

    def find_class(self, module: str, name: str):
        raise SnapshotError(f"refused: the pickle wants {module}.{name}; a snapshot needs no classes")


def _check(snapshot) -> dict:
    """Returns the snapshot if it has the segments, blocks and events that PyTorch writes, with the right types.

    Raises SnapshotError otherwise.
    """
    if not isinstance(snapshot, dict):
        raise SnapshotError(f"expected a dictionary, got {type(snapshot).__name__}")
    for part, kind in PARTS.items():
        if not isinstance(snapshot.get(part), kind):
            raise SnapshotError(
                f"not a memory snapshot: expected a {kind.__name__} under {part!r}, "
                f"got keys {sorted(map(str, snapshot))[:8]}"
            )
    seen: set[int] = set()  # a list that occurs in several places is checked once
    for number, segment in enumerate(snapshot["segments"]):
        where = f"segment {number}"
        _check_entry(segment, SEGMENT, where)
        for at, block in enumerate(_new(segment["blocks"], seen)):
            _check_entry(block, BLOCK, f"{where}, block {at}")
    for device, trace in enumerate(snapshot["device_traces"]):
        if not isinstance(trace, list):
            raise SnapshotError(f"history of device {device}: expected a list, got {type(trace).__name__}")
        for at, event in enumerate(_new(trace, seen)):
            _check_entry(event, EVENT, f"device {device}, event {at}")
    return snapshot


def _new(entries: list, seen: set[int]) -> list:
    if id(entries) in seen:
        return []
    seen.add(id(entries))
    return entries


def _check_entry(entry, kinds: dict[str, type], where: str) -> None:
    if not isinstance(entry, dict):
        raise SnapshotError(f"{where}: expected a dictionary, got {type(entry).__name__}")
    for key, kind in kinds.items():
        value = entry.get(key)
        if type(value) is not kind:
            found = "is missing" if key not in entry else f"is {type(value).__name__}"
            raise SnapshotError(f"{where}: {key!r} {found}, wanted {kind.__name__}")
        if kind is int and not -(2**63) <= value < 2**64:
            raise SnapshotError(f"{where}: {key!r} is {value:.3g}, which no address and no size is")


@dataclass(frozen=True)
class Difference:
    """A stretch in which two event streams differ: `first` from `first_start` on, against `second`.

    Events are (action, bytes) pairs; one of the two stretches may be empty.
    """

    first_start: int
    first: tuple[tuple[str, int], ...]
    second_start: int
    second: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Comparison:
    """The agreement of two event streams; `common` counts the events that both have, in the same order."""

    first_events: int
    second_events: int
    common: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Returns whether the streams are the same, event for event."""
        return not self.differences


def events(snapshot: dict, device: int = 0, actions: Iterable[str] = MEMORY_ACTIONS) -> list[tuple[str, int]]:
    """Returns the (action, bytes) pairs of a snapshot's history, oldest first.

    Raises SnapshotError if the snapshot has no history of that device.
    """
    traces = snapshot["device_traces"]
    if not 0 <= device < len(traces):
        raise SnapshotError(f"no history of device {device}: the snapshot has {len(traces)} devices")
    wanted = frozenset(actions)
    return [(entry["action"], entry["size"]) for entry in traces[device] if entry["action"] in wanted]


def compare(first: dict, second: dict, device: int = 0) -> Comparison:
    """Compares the histories of two snapshots: the same actions with the same sizes in the same order.

    Addresses, times and frames are ignored, because they differ from run to run.
    """
    ours, theirs = events(first, device), events(second, device)
    # difflib needs quadratic time where events repeat, so equal ends are set aside first.
    start = _common_prefix(ours, theirs)
    end = _common_prefix(ours[start:][::-1], theirs[start:][::-1])
    middle_ours, middle_theirs = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
    matcher = difflib.SequenceMatcher(None, middle_ours, middle_theirs, autojunk=False)
    differences = tuple(
        Difference(start + i, tuple(middle_ours[i:j]), start + k, tuple(middle_theirs[k:m]))
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    )
    common = start + end + sum(match.size for match in matcher.get_matching_blocks())
    return Comparison(len(ours), len(theirs), common, differences)


def _common_prefix(first: list, second: list) -> int:
    """Returns the number of elements that the two lists share at their start."""
    missing = object()
    pairs = enumerate(zip_longest(first, second, fillvalue=missing))
    return next((i for i, (a, b) in pairs if a != b), len(first))
