"""What PyTorch's own memory history says: the moment of the peak, what was allocated then, and by which lines.

The input is a device's trace in a snapshot of `torch.cuda.memory`, with Python stacks, and what `owners.Owners` noted.
"""

from __future__ import annotations

import linecache
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

from simgpu.allocator.requests import Requests
from simgpu.report.findings import CACHE
from simgpu.report.growth import STEPS, Grown, Growth
from simgpu.report.owners import (
    ACTIVATIONS,
    GATHERED,
    GRADIENTS,
    GRAPHS,
    PARAMETERS,
    REDUCED,
    STATES,
    TEMPORARIES,
    WORKSPACES,
    of_fsdp,
)
from simgpu.report.timeline import Timeline
from simgpu.running.stub import called

ROUNDING = "rounding of blocks"
PARTS = (PARAMETERS, GATHERED, GRADIENTS, REDUCED, STATES, ACTIVATIONS, GRAPHS, TEMPORARIES, WORKSPACES, ROUNDING)
FORWARD, BACKWARD, STEP = "forward", "backward", "optimizer step"

ROUND = 512
"""Bytes that the size of each block is a multiple of (kMinBlockSize in CUDACachingAllocator.cpp)."""

_TAKEN = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass
class Block:
    """An allocation: its number among all, its size in blocks of ROUND bytes, and when it was freed (None: never).

    `freed` counts the allocations that had been made by then.
    """

    number: int
    address: int
    size: int
    frames: Sequence[dict]
    graph: bool
    freed: int | None = None
    owner: str | None = None


@dataclass(frozen=True)
class Moment:
    """What was allocated at one moment, the last event before it, and what was reserved, in bytes. `events`: how many
    events of the timeline came before."""

    blocks: list[Block]
    event: dict
    number: int
    allocated: int
    reserved: int
    events: int = 0


@dataclass
class History:
    """A device's trace, read. `first`: how many allocations were made before the first event that it holds.

    `levels`: bytes allocated and reserved before each allocation of it. `requests`: those that the allocator received.
    """

    blocks: list[Block] = field(default_factory=list)
    peak: Moment | None = None
    failed: Moment | None = None
    failures: int = 0
    first: int = 0
    levels: list[tuple[int, int]] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    timeline: Timeline = field(default_factory=Timeline)


def read(trace: Iterable[dict], first: int = 0) -> History:
    """Reads a trace, whose first allocation has the number `first`."""
    found, events = History(first=first), list(trace)
    if first:
        found.requests.give_up("the history does not begin with the run")
    best = _highest(events)
    live: dict[int, Block] = {}
    number, allocated, reserved = first, 0, 0
    for at, event in enumerate(events):
        action, size = event["action"], event["size"]
        if action == "alloc":
            graph = tuple(event.get("pool_id", (0, 0))) != (0, 0)
            block = Block(number, event["addr"], _rounded(size), event.get("frames", ()), graph)
            live[block.address] = block
            found.blocks.append(block)
            found.levels.append((allocated, reserved))
            found.requests.malloc(size, event.get("stream", 0))
            if graph:
                found.requests.give_up("the program uses private pools of memory")
            allocated += block.size
            number += 1
            found.timeline.add(block, allocated, reserved)
        elif action == "free_requested":
            block = live.pop(event["addr"], None)
            if block is not None:
                block.freed = number
                allocated -= block.size
                found.requests.free(block.number - first)
                found.timeline.add(block, allocated, reserved)
        elif action in _TAKEN:
            reserved += _TAKEN[action] * size
        elif action == "oom":
            found.failures += 1
            found.requests.failed(size, event.get("stream", 0))
            found.failed = Moment(list(live.values()), event, number, allocated, reserved, found.timeline.events)
        if at == best:
            found.peak = Moment(list(live.values()), event, number, allocated, reserved, found.timeline.events)
    return found


def _rounded(size: int) -> int:
    return max(1, -(-size // ROUND)) * ROUND


def _highest(events: list[dict]) -> int:
    """The index of the event after which most is allocated, -1 where nothing is."""
    sizes: dict[int, int] = {}
    allocated = most = 0
    best = -1
    for at, event in enumerate(events):
        if event["action"] == "alloc":
            sizes[event["addr"]] = _rounded(event["size"])
            allocated += sizes[event["addr"]]
            if allocated > most:
                most, best = allocated, at
        elif event["action"] == "free_requested":
            allocated -= sizes.pop(event["addr"], 0)
    return best


def step_sizes(found: History, ends: Iterable[int]) -> list[tuple[int, int]]:
    """Bytes allocated and reserved when as many allocations had been made, for each of `ends`; after that number what
    is freed before the next allocation counts as freed."""
    levels = [*found.levels, found.levels[-1]] if found.levels else []
    return [levels[end - found.first] for end in ends if 0 <= end - found.first < len(levels)]


def grown(found: History, ends: Iterable[int], origin: Callable[[Block], object]) -> list[Grown]:
    """What grows with each step, of which `ends` says how many allocations had been made when it ended."""
    growth = Growth()
    origins: dict[int, object] = {}
    for number, end in enumerate(islice(ends, STEPS), 1):
        made = found.blocks[: max(0, end - found.first)]
        live = [one for one in made if one.freed is None or one.freed > end]
        for block in live:
            if block.number not in origins:
                origins[block.number] = origin(block)
        growth.step(number, [_Alive(origins[one.number], one.size) for one in live])
    return growth.grown()


class _Alive(NamedTuple):
    origin: object
    size: int


def assign(found: History, marks: Iterable[tuple[int, dict[int, str]]]) -> None:
    """Gives blocks their owners. A mark is how many allocations there had been, and the owner of each address."""
    at: dict[int, list[Block]] = defaultdict(list)
    for block in found.blocks:
        at[block.address].append(block)
    numbers = {address: [block.number for block in blocks] for address, blocks in at.items()}
    for count, owners in marks:
        for address, owner in owners.items():
            place = bisect_left(numbers.get(address, ()), count) - 1
            if place >= 0:
                block = at[address][place]
                if block.owner is None and (block.freed is None or block.freed >= count):
                    block.owner = owner


@dataclass(frozen=True)
class Windows:
    """When backward passes and steps ran: (kind, begin, end), in allocations that had been made."""

    windows: Sequence[tuple[str, int, int]]

    def stage(self, number: int) -> str:
        """The stage that allocation `number` belongs to."""
        return BACKWARD if self._in("backward", number) else STEP if self._in("step", number) else FORWARD

    def kept(self, block: Block) -> bool | None:
        """Returns whether a block was alive when the next backward pass began, None if none began."""
        begins, _ = self._tables["backward"]
        place = bisect_right(begins, block.number)
        return None if place == len(begins) else block.freed is None or block.freed > begins[place]

    def _in(self, kind: str, number: int) -> bool:
        begins, latest = self._tables[kind]
        place = bisect_right(begins, number)
        return place > 0 and latest[place - 1] > number

    @cached_property
    def _tables(self) -> dict[str, tuple[list[int], list[int]]]:
        """Of each kind, the begins of its windows in order, and the latest end of each window and those before it."""
        tables = {}
        for wanted in ("backward", "step"):
            found = sorted((begin, end) for kind, begin, end in self.windows if kind == wanted)
            tables[wanted] = [begin for begin, _ in found], list(accumulate((end for _, end in found), max))
        return tables


def part(block: Block, windows: Windows, failed: bool, workspaces: frozenset[int]) -> str:
    """Returns the part that a block belongs to. `failed`: memory ran out, perhaps before the next backward pass."""
    sharding = next(filter(None, (of_fsdp(one["filename"], one["name"]) for one in block.frames)), None)
    if sharding is GATHERED and block.owner in (None, PARAMETERS):
        return GATHERED  # a module holds it while it computes
    if block.owner is not None:
        return block.owner
    if sharding is not None:
        return sharding
    if block.size in workspaces and block.freed is None:
        return WORKSPACES
    if windows.stage(block.number) == FORWARD:
        kept = windows.kept(block)
        if kept or (kept is None and failed):
            return ACTIVATIONS
    return GRAPHS if block.graph else TEMPORARIES


def parts(sizes: dict[str, int], moment: Moment, exact: int) -> dict[str, int]:
    """Bytes of each part, those that there are. Their sum is what was reserved. `exact`: PyTorch's own counter."""
    allocated = max(exact, moment.allocated)
    sizes = {**sizes, ROUNDING: allocated - moment.allocated}
    found = {name: sizes[name] for name in PARTS if sizes.get(name)}
    return {**found, CACHE: max(0, moment.reserved - allocated)}


# --- which line it was ----------------------------------------------------------------------

_GENERATED = re.compile(r"torchinductor|/[a-z0-9]{2}/c[a-z0-9]{40,}\.py$")
_BUFFER = re.compile(r"\s*(\w+) = (?:empty_strided|aten\.|torch\.ops|extern_kernels)")
_COMMENT = re.compile(r"# (?:Topologically Sorted )?Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")
_NAMED = 3  # operators, and names of the program, that are shown of a fused kernel; a large one has dozens
_BELOW = 12  # lines of generated code below a buffer in which the comment of its kernel is looked for


def is_generated(file: str) -> bool:
    """Whether Inductor wrote a file."""
    return _GENERATED.search(file) is not None


def operation(frames: Sequence[dict], stage: str) -> str:
    """What allocates, in words: the call in the innermost line that says which, or the operators of a kernel that
    Inductor wrote."""
    frame = next((one for one in frames if not called.is_plumbing(one["filename"], one["name"])), None)
    if frame is None:
        return "autograd" if stage == BACKWARD else "PyTorch"
    if is_generated(frame["filename"]):
        return _of_generated(frame["filename"], frame["line"])
    return called.at(frame["filename"], frame["line"], frame["name"])


def _of_generated(file: str, line: int) -> str:
    """The operators and the program's names that the comment below a generated line gives."""
    text = linecache.getline(file, line)
    name = _BUFFER.match(text)
    for below in range(line, line + _BELOW):
        if found := _COMMENT.search(linecache.getline(file, below)):
            operators = _first([one.strip().removeprefix("aten.") for one in found[2].split(",")])
            names = f" of {_first([one.strip() for one in found[1].split(',')])}" if found[1] else ""
            return f"compiled {operators}{names}"
    return f"compiled {name[1]}" if name else "compiled code"


def _first(names: list[str]) -> str:
    """Joins the first `_NAMED` of several names without those that are repeated, and says how many more there are."""
    names = list(dict.fromkeys(names))
    more = len(names) - _NAMED
    return ", ".join(names) if more < 2 else f"{', '.join(names[:_NAMED])} and {more} more"


def largest(counter: Counter) -> list:
    """The rows of a counter, the largest first, equal ones by their names."""
    return sorted(counter.items(), key=lambda row: (-row[1], row[0]))
