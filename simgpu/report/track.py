"""The timeline of a run as columns of integers and a table of strings, to be stored and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from simgpu.report.timeline import EVENTS, Timeline

POINTS = 8192
"""Points that are kept of a run with more than EVENTS allocations and frees: the highest one of each few events."""


class Description(NamedTuple):
    """What is known of a block: its bytes, its part of the page, and where it was allocated, as texts."""

    size: int
    part: str
    operator: str = ""
    stage: str = ""
    place: str = ""
    library: str = ""
    module: str = ""


@dataclass(frozen=True)
class Track:
    """Memory over a run, event by event, or the highest points of a run with more than EVENTS events.

    `events`: how many allocations and frees there were. `at`: how many of them there had been at the moment that the
    page describes, so the last one then is event `at - 1`. `names`: a table of texts. `kinds`: each kind of block: its
    bytes, then its part, operator, stage, line of the program, line of a library and module, as places in `names`.
    `blocks`: the kind of each block, in the order of their allocation. `order`: one number per event, which is 0 for
    the allocation of the next block, and n for the free of the n-th newest of the blocks that were allocated before.
    `reserved`: pairs of an event and of the bytes of all segments from there on. `points`: of a long run, pairs of the
    most bytes allocated and reserved in each `stride` events; the columns are then empty.
    """

    events: int
    at: int
    names: tuple[str, ...] = ()
    kinds: tuple[tuple[int, ...], ...] = ()
    blocks: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    points: tuple[int, ...] = ()
    stride: int = 1

    @classmethod
    def of(cls, line: Timeline, at: int, describe: Callable[[Any], Description]) -> Track | None:
        """Returns the track of a timeline, None if it has no events. `describe` is called for each of its blocks."""
        if not line.events:
            return None
        if line.events > EVENTS:
            points, stride = _thinned(line)
            return cls(line.events, at, points=points, stride=stride)
        names: dict[str, int] = {}
        kinds: dict[tuple[int, ...], int] = {}
        numbers: dict[Any, int] = {}
        blocks, order = [], []
        for block in line.log:
            number = numbers.pop(id(block), None)
            if number is not None:
                order.append(len(blocks) - number)
                continue
            numbers[id(block)] = len(blocks)
            size, *texts = describe(block)
            kind = (size, *(names.setdefault(text, len(names)) for text in texts))
            blocks.append(kinds.setdefault(kind, len(kinds)))
            order.append(0)
        changes = _changes(line.curve[1::2], line.stride)
        return cls(line.events, at, tuple(names), tuple(kinds), tuple(blocks), tuple(order), changes)

    @classmethod
    def load(cls, found: dict) -> Track:
        """Returns the track that was stored as JSON. Raises TypeError or KeyError for anything else."""
        columns = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}
        return cls(**{**columns, "kinds": tuple(tuple(one) for one in found["kinds"])})

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yields the block's number and the change in bytes of each event."""
        made = 0
        for back in self.order:
            number = made if back == 0 else made - back
            made += back == 0
            size = self.kinds[self.blocks[number]][0]
            yield number, size if back == 0 else -size

    def part(self, number: int) -> str:
        """Returns the part of the page that a block belongs to."""
        return self.names[self.kinds[self.blocks[number]][1]]

    def allocated(self) -> list[int]:
        """Returns the bytes that are allocated after each event, or the most of each `stride` events of a long run."""
        if self.points:
            return list(self.points[0::2])
        return list(accumulate(change for _, change in self.steps()))

    def reserved_after(self) -> list[int]:
        """Returns the bytes of all segments after each event, or the most of each `stride` events of a long run."""
        if self.points:
            return list(self.points[1::2])
        found: list[int] = []
        ends = (*self.reserved[2::2], self.events)
        for nbytes, end in zip(self.reserved[1::2], ends, strict=True):
            found += [nbytes] * (end - len(found))
        return found

    def thinned(self) -> Track:
        """Returns the track of the highest points alone, without blocks."""
        if self.points or self.events <= POINTS:
            return self
        pairs = list(zip(self.allocated(), self.reserved_after(), strict=True))
        points, stride = _highest(pairs, 1)
        return Track(self.events, self.at, points=points, stride=stride)


def _changes(values: Sequence[int], stride: int) -> tuple[int, ...]:
    """Returns the event and the value of each change."""
    found: list[int] = []
    before = None
    for at, value in enumerate(values):
        if value != before:
            found += (at * stride, value)
            before = value
    return tuple(found)


def _thinned(line: Timeline) -> tuple[tuple[int, ...], int]:
    return _highest(line.points(), line.stride)


def _highest(pairs: list[tuple[int, int]], stride: int) -> tuple[tuple[int, ...], int]:
    """Returns at most POINTS pairs, flat, with the most of each column, and the events that each is of."""
    while len(pairs) > POINTS:
        pairs = [tuple(map(max, *pairs[at : at + 2], pairs[at])) for at in range(0, len(pairs), 2)]  # pyright: ignore
        stride *= 2
    return tuple(value for pair in pairs for value in pair), stride
