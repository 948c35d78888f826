"""Blocks, the segments they are cut from, and the pools of free blocks.

A *segment* is memory taken from the device with one `cudaMalloc` (or a range of addresses that memory is
mapped into, for an expandable segment). A *block* is a piece of a segment: handed out, or free. The blocks of
a segment form a list in the order of their addresses. Free blocks wait in a pool, best fit first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from simgpu.memory.event_log import DEFAULT_POOL

if TYPE_CHECKING:
    from simgpu.memory.private_pools import PrivatePool

SMALL, LARGE = 0, 1


class Segment:
    """Memory taken from the device at once: `size` bytes at `address`, cut into blocks from `first` on.

    `pool` is the pool its blocks belong to, `stream` the only stream they serve. `granule` is 0, or, for an
    expandable segment, the number of bytes that are mapped and unmapped at once.
    """

    __slots__ = ("address", "first", "granule", "pool", "size", "stream")

    def __init__(self, address: int, size: int, stream: int, pool: BlockPool, granule: int = 0) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.first: Block | None = None
        self.granule = granule

    def __iter__(self) -> Iterator[Block]:
        block = self.first
        while block is not None:
            yield block
            block = block.next


class Block:
    """A piece of a segment: `size` bytes at `address`, handed out for `requested_size` bytes or free.

    `allocated` means handed out; `active` lasts longer if other streams still use the block when it is freed.
    `counter` breaks ties between free blocks of one size (see `BlockPool`). `stream_uses` names the other
    streams it was used on, `event_count` the streams whose work it still waits for after being freed.
    `mapped` is False for a range of an expandable segment without memory behind it.
    """

    __slots__ = (
        "active",
        "address",
        "allocated",
        "counter",
        "event_count",
        "frames",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested_size",
        "searches_before",
        "segment",
        "segment_frames",
        "size",
        "stream",
        "stream_uses",
    )

    def __init__(self, address: int, size: int, segment: Segment, counter: int) -> None:
        self.address = address
        self.size = size
        self.requested_size = 0
        self.stream = segment.stream
        self.pool = segment.pool
        self.segment = segment
        self.counter = counter
        self.allocated = False
        self.active = False
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.stream_uses: dict[int, None] | None = None
        self.event_count = 0
        self.searches_before = 0
        self.frames: list | None = None
        self.segment_frames: list | None = None

    @property
    def is_split(self) -> bool:
        """Whether the segment holds other blocks too."""
        return self.prev is not None or self.next is not None

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        """Link this block into its segment between two neighbours (None: the end of the segment)."""
        self.prev, self.next = before, after
        if before is None:
            self.segment.first = self
        else:
            before.next = self
        if after is not None:
            after.prev = self

    def absorb(self, neighbour: Block) -> None:
        """Take over the bytes of an adjacent block, which leaves the segment."""
        if self.prev is neighbour:
            self.address = neighbour.address
            self.segment_frames = neighbour.segment_frames
            self.prev = neighbour.prev
            if self.prev is None:
                self.segment.first = self
            else:
                self.prev.next = self
        else:
            self.next = neighbour.next
            if self.next is not None:
                self.next.prev = self
        self.size += neighbour.size
        neighbour.prev = neighbour.next = None

    def __repr__(self) -> str:
        state = "allocated" if self.allocated else "free" if self.mapped else "unmapped"
        return f"<Block {self.address:#x} {self.size} bytes, {state}, stream {self.stream}>"


class BlockPool:
    """The free blocks of one pool, in the order in which the search looks at them.

    A block serves only its own stream, so there is a list per stream. Within it the smallest block comes
    first; among equals the one with the lower counter, then the one at the lower address.
    """

    __slots__ = ("_free", "_unmapped", "id", "index", "owner", "searches")

    def __init__(self, index: int, owner: PrivatePool | None = None) -> None:
        self.index = index
        self.owner = owner  # the private pool it is part of
        self.id = DEFAULT_POOL if owner is None else owner.id
        self._free: dict[int, SortedList] = {}
        self._unmapped: dict[int, SortedList] = {}
        self.searches = 0

    @property
    def is_small(self) -> bool:
        """The small pool serves requests of at most 1 MiB."""
        return self.index == SMALL

    def add(self, block: Block) -> None:
        """Put a free block in."""
        block.searches_before = self.searches
        blocks = self._free.get(block.stream)
        if blocks is None:
            blocks = self._free[block.stream] = SortedList()
        blocks.add((block.size, block.counter, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a free block out."""
        self._free[block.stream].remove((block.size, block.counter, block.address, block))

    def from_size(self, stream: int, size: int) -> Iterator[Block]:
        """The stream's free blocks of at least `size` bytes: here is best fit."""
        blocks = self._free.get(stream)
        if blocks:
            for position in range(blocks.bisect_left((size,)), len(blocks)):
                yield blocks[position][3]

    def best_fit(self, stream: int, size: int) -> Block | None:
        """The stream's smallest free block of at least `size` bytes."""
        blocks = self._free.get(stream)
        if blocks:
            position = blocks.bisect_left((size,))
            if position < len(blocks):
                return blocks[position][3]
        return None

    def largest_first(self, stream: int, below: Block | None) -> list[Block]:
        """The stream's free blocks before `below` in the search order (None: all), the last one first."""
        blocks = self._free.get(stream, ())
        end = len(blocks)
        if below is not None:
            end = blocks.index((below.size, below.counter, below.address, below))
        return [entry[3] for entry in reversed(blocks[:end])]

    def __iter__(self) -> Iterator[Block]:
        """All free blocks, stream after stream; the pool may be changed meanwhile."""
        return iter([entry[3] for stream in sorted(self._free) for entry in self._free[stream]])

    def add_unmapped(self, block: Block) -> None:
        """Put in a range of an expandable segment that has no memory behind it."""
        ranges = self._unmapped.get(block.stream)
        if ranges is None:
            ranges = self._unmapped[block.stream] = SortedList()
        ranges.add((block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Take such a range out."""
        self._unmapped[block.stream].remove((block.address, block))

    def unmapped(self, stream: int) -> list[Block]:
        """The stream's ranges without memory, in the order of their addresses."""
        return [entry[1] for entry in self._unmapped.get(stream, ())]
