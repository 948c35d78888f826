"""A memory snapshot's history, given once more to the allocator: on a card of any size, under any settings.

The file is what `torch.cuda.memory._dump_snapshot` writes; `simgpu.allocator.snapshot` reads it, and runs nothing that
is in it. What the history does not tell is taken so, and counted in `History`:

- Blocks that lived before the history began are asked for first, in the order of their addresses.
- A block that waited for another stream after it was freed counts as allocated until that stream was done.
- `empty_cache` is called where the history shows that it was: by the frames of segments that were given back, or, where
  no frames were recorded, where the next event is no new segment and no failure.
- A request that failed is made again. If it is served now, it is freed at once: the program's way on is not known.
- Blocks of private pools (CUDA graphs) are taken from the ordinary pools.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from simgpu.allocator.caching import Block, CachingAllocator, OutOfMemory
from simgpu.allocator.event_log import DEFAULT_POOL
from simgpu.allocator.physical import Device
from simgpu.allocator.rounding import segment_size
from simgpu.allocator.settings import AllocatorSettings
from simgpu.allocator.snapshot import SnapshotError
from simgpu.report import sizes
from tools.playground import state
from tools.playground.game import Refused

POINTS = 400
"""A curve is drawn through at most so many points; each is the highest of the events that it stands for."""

NEEDED = ("alloc", "free_completed")
FREED = ("segment_free", "segment_unmap")
GOT = ("segment_alloc", "segment_map")

ALLOC, FREE, EMPTY, FAILED = range(4)


@dataclass(frozen=True)
class History:
    """What a snapshot's history asks of the allocator, and what the file says that came of it. Sizes in bytes.

    `steps`: (kind, address, size, stream), the blocks from before the history first. `version`: torch's, as far as the
    file's keys tell it. `total`: the most that PyTorch could take, as far as failures show it, or None without one.
    """

    steps: tuple[tuple[int, int, int, int], ...]
    events: int
    before: int
    before_bytes: int
    waited: int
    private: int
    settings: str
    version: tuple[int, int]
    total: int | None
    peak_reserved: int
    reserved: int
    segments_got: int
    segments_freed: int
    failed: int


@dataclass
class Played:
    """What came of a history: `curve` has (events so far, highest allocated, highest reserved) of each stretch;
    `moment` says when `segments` were looked at. `failed` requests were refused, the first with the text `failure`, and
    `served` were served that had failed in the recording."""

    settings: str
    counters: dict[str, int]
    curve: list[tuple[int, int, int]] = field(default_factory=list)
    failure: str | None = None
    failed: int = 0
    served: int = 0
    moment: str = ""
    segments: list[dict] = field(default_factory=list)


def devices(snapshot: dict) -> list[int]:
    """The GPUs of which a snapshot has a history. Raises SnapshotError if there is none."""
    found = [
        number
        for number, trace in enumerate(snapshot["device_traces"])
        if any(event["action"] in NEEDED for event in trace)
    ]
    if not found:
        raise SnapshotError(
            "the snapshot has no history: call torch.cuda.memory._record_memory_history() before the workload"
        )
    return found


def history(snapshot: dict, device: int) -> History:
    """The history of one GPU. Raises SnapshotError when an event lacks an address, or has a size that cannot be."""
    trace = snapshot["device_traces"][device]
    segments = [one for one in snapshot["segments"] if one.get("device", 0) == device]
    known: set[int] = set()
    before: dict[int, tuple[int, int]] = {}
    steps: list[tuple[int, int, int, int]] = []
    waited = private = 0
    for at, event in enumerate(trace):
        action = event["action"]
        if action in NEEDED:
            address, size, stream = _whole(event, "addr", at), _whole(event, "size", at), _whole(event, "stream", at, 0)
            private += event.get("pool_id", DEFAULT_POOL) != DEFAULT_POOL
            if action == "alloc":
                known.add(address)
                steps.append((ALLOC, address, size, stream))
                continue
            if address not in known:
                before[address] = (size, stream)
            known.discard(address)
            steps.append((FREE, address, size, stream))
            asked = trace[at - 1] if at else {}
            waited += asked.get("action") != "free_requested" or asked.get("addr") != address
        elif action == "oom":
            steps.append((FAILED, 0, _whole(event, "size", at), _whole(event, "stream", at, 0)))
        elif action in FREED and _ends_an_empty_cache(trace, at):
            steps.append((EMPTY, 0, 0, 0))
    for segment in segments:
        for block in segment["blocks"]:
            address = block.get("address")
            if block["state"] != "inactive" and type(address) is int and address not in known:
                size = block.get("requested_size", block["size"])
                before.setdefault(address, (size if type(size) is int else block["size"], 0))
    first = tuple((ALLOC, address, size, stream) for address, (size, stream) in sorted(before.items()))
    settings = snapshot.get("allocator_settings")
    settings = settings if isinstance(settings, dict) else {}
    text = settings.get("PYTORCH_CUDA_ALLOC_CONF", "")
    text = text if isinstance(text, str) else ""
    try:
        parsed = AllocatorSettings.parse(text)
    except (ValueError, NotImplementedError):
        parsed = AllocatorSettings()
    reserved, peak, at_failure = _reserved(trace, segments, parsed)
    return History(
        steps=first + tuple(steps),
        events=len(trace),
        before=len(before),
        before_bytes=sum(size for size, _ in before.values()),
        waited=waited,
        private=private,
        settings=text,
        version=_version(settings, trace),
        total=at_failure,
        peak_reserved=peak,
        reserved=reserved,
        segments_got=sum(event["action"] in GOT for event in trace),
        segments_freed=sum(event["action"] in FREED for event in trace),
        failed=sum(event["action"] == "oom" for event in trace),
    )


def _whole(event: dict, key: str, at: int, default: int | None = None) -> int:
    value = event.get(key, default)
    if type(value) is not int or value < 0:
        raise SnapshotError(f"event {at}, {event['action']}: {key!r} is {value!r}, wanted a whole number")
    return value


def _ends_an_empty_cache(trace: list[dict], at: int) -> bool:
    """Whether this event is the last one of segments that `empty_cache` gave back."""
    following = trace[at + 1] if at + 1 < len(trace) else {"action": ""}
    if following["action"] in FREED:
        return False
    frames = trace[at].get("frames")
    if isinstance(frames, list) and frames:
        return any(isinstance(frame, dict) and "empty_cache" in str(frame.get("name")) for frame in frames)
    return following["action"] not in (*GOT, "oom")


def _reserved(trace: list[dict], segments: list[dict], parsed: AllocatorSettings) -> tuple[int, int, int | None]:
    """Reserved at the end, its peak, and the most that PyTorch could take, as far as the failures show it.

    At a failure the device has less than was asked for, or a share that was set is passed by it.
    """
    signs = {**dict.fromkeys(GOT, 1), **dict.fromkeys(FREED, -1)}
    end = sum(segment["total_size"] for segment in segments)
    now = peak = end - sum(signs.get(event["action"], 0) * event["size"] for event in trace)
    bounds = []
    for event in trace:
        now += signs.get(event["action"], 0) * event["size"]
        peak = max(peak, now)
        free = event.get("device_free", event.get("addr"))
        if event["action"] == "oom" and type(free) is int and 0 <= free < 2**50:
            asked = segment_size(event["size"], parsed.large_segment_size)
            bounds.append(now + min(free, asked - 1))
    return end, peak, max(min(bounds), peak) if bounds else None


def _version(settings: dict, trace: list[dict]) -> tuple[int, int]:
    """Which of the versions whose free blocks are searched in another order wrote this, by keys that came with them."""
    if "max_round_threshold" in settings:
        return 2, 13
    return (2, 12) if trace and "pool_id" in trace[0] else (2, 11)


def play(history: History, settings: str, total: int) -> Played:
    """Give a history to a new allocator with these settings, on a device of which PyTorch may take `total` bytes.

    The segments are those at the first failure, or where reserved was highest. Raises `Refused` for settings that
    PyTorch refuses, with its words.
    """
    played, best = _play(history, settings, total, look_at=None)
    again, _ = _play(history, settings, total, look_at=best)
    played.segments = again.segments
    where = "at the first failure" if played.failed else "where reserved was highest"
    played.moment = (
        f"{where}, after {max(0, best - history.before + 1):,} of {len(history.steps) - history.before:,} steps"
    )
    return played


def _play(history: History, settings: str, total: int, look_at: int | None) -> tuple[Played, int]:
    try:
        parsed = AllocatorSettings.parse(settings)
        allocator = CachingAllocator(Device(total), parsed, history.version)
    except (ValueError, NotImplementedError) as error:
        raise Refused(str(error)) from None
    living: dict[int, Block | None] = {}
    played = Played(settings, {})
    points: list[tuple[int, int]] = []
    best, highest = 0, -1
    for at, (kind, address, size, stream) in enumerate(history.steps):
        try:
            if kind == ALLOC:
                if (block := living.pop(address, None)) is not None:  # the file does not say that it was freed
                    allocator.free(block)
                living[address] = allocator.malloc(size, stream)
            elif kind == FREE:
                block = living.pop(address, None)
                if block is not None:
                    allocator.free(block)
            elif kind == EMPTY:
                allocator.empty_cache()
            else:
                block = allocator.malloc(size, stream)
                played.served += 1
                if block is not None:
                    allocator.free(block)
        except OutOfMemory as error:
            played.failed += 1
            if played.failed == 1:
                best, highest = at, 2**62
                played.failure = str(error)
        points.append((allocator.allocated, allocator.reserved))
        if allocator.reserved > highest:
            best, highest = at, allocator.reserved
        if at == look_at:
            played.segments = state.segments(allocator)
            return played, best
    played.counters = state.counters(allocator)
    played.curve = _curve(points)
    return played, best


def _curve(points: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    width = -(-len(points) // POINTS) or 1
    stretches: Iterable = (points[at : at + width] for at in range(0, len(points), width))
    return [
        (min((number + 1) * width, len(points)), max(one for one, _ in part), max(two for _, two in part))
        for number, part in enumerate(stretches)
    ]


def notes(history: History) -> list[str]:
    """What the replay had to assume about this history, in sentences."""
    said = []
    if history.before:
        size = sizes.size(history.before_bytes)
        said.append(
            f"{history.before:,} blocks with {size} lived before the history began: they are asked for first, in the "
            "order of their addresses."
        )
    if history.waited:
        said.append(f"{history.waited:,} blocks waited for another stream, and count as allocated until it was done.")
    if history.private:
        said.append(f"{history.private:,} events are of private pools, and are served from the ordinary ones.")
    if history.failed:
        said.append(
            f"{history.failed:,} requests failed in the recording. They are made again, and freed at once where they "
            "are served: what the program would then have done is not known."
        )
    return said
