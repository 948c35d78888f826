"""Defines blocks, the segments that they are split from, and the pools of free blocks.

A *segment* is memory from the device by one `cudaMalloc`, or for an expandable segment a range of addresses that memory
is mapped into. A *block* is a piece of a segment, either allocated or free. The blocks of a segment form a list in the
order of their addresses. Free blocks are kept in a pool, best fit first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from simgpu.allocator.event_log import DEFAULT_POOL

if TYPE_CHECKING:
    from simgpu.allocator.private_pools import PrivatePool

SMALL, LARGE = 0, 1


class Segment:
    """Memory from the device: `size` bytes at `address`, split into blocks from `first` on.

    `pool` is the pool that its blocks belong to, and `stream` the only stream that they serve. `granule` is 0, or, for
    an expandable segment, the number of bytes that are mapped and unmapped at once.
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
    """A piece of a segment: `size` bytes at `address`, free or allocated for `requested_size` bytes.

    `active` lasts longer than `allocated` if other streams still use the block when it is freed. `counter` breaks ties
    between free blocks of one size (see `BlockPool`). `stream_uses` names the other streams that it was used on, and
    `event_count` is the number of streams whose work it still waits for after being freed. `mapped` is False for a
    range of an expandable segment without memory.
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
        """Returns whether the segment holds other blocks too."""
        return self.prev is not None or self.next is not None

    def insert_between(self, before: Block | None, after: Block | None) -> None:
        """Links this block into its segment between two neighbours (None is the end of the segment)."""
        self.prev, self.next = before, after
        if before is None:
            self.segment.first = self
        else:
            before.next = self
        if after is not None:
            after.prev = self

    def absorb(self, neighbour: Block) -> None:
        """Adds the bytes of an adjacent block, which is removed from the segment."""
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
    """The free blocks of one pool, in search order.

    A block serves only its own stream, so there is a list per stream. It is sorted by size, then by counter, then by
    address, each ascending.
    """

    __slots__ = ("_free", "_unmapped", "id", "index", "owner", "searches")

    def __init__(self, index: int, owner: PrivatePool | None = None) -> None:
        self.index = index
        self.owner = owner  # the private pool that it belongs to
        self.id = DEFAULT_POOL if owner is None else owner.id
        self._free: dict[int, SortedList] = {}
        self._unmapped: dict[int, SortedList] = {}
        self.searches = 0

    @property
    def is_small(self) -> bool:
        """Returns whether it is the small pool, which serves requests of at most 1 MiB."""
        return self.index == SMALL

    def add(self, block: Block) -> None:
        """Adds a free block."""
        block.searches_before = self.searches
        blocks = self._free.get(block.stream)
        if blocks is None:
            blocks = self._free[block.stream] = SortedList()
        blocks.add((block.size, block.counter, block.address, block))

    def remove(self, block: Block) -> None:
        """Removes a free block."""
        self._free[block.stream].remove((block.size, block.counter, block.address, block))

    def from_size(self, stream: int, size: int) -> Iterator[Block]:
        """Yields the stream's free blocks of at least `size` bytes, best fit first."""
        blocks = self._free.get(stream)
        if blocks:
            for position in range(blocks.bisect_left((size,)), len(blocks)):
                yield blocks[position][3]

    def best_fit(self, stream: int, size: int) -> Block | None:
        """Returns the stream's smallest free block of at least `size` bytes, or None."""
        blocks = self._free.get(stream)
        if blocks:
            position = blocks.bisect_left((size,))
            if position < len(blocks):
                return blocks[position][3]
        return None

    def largest_first(self, stream: int, below: Block | None) -> list[Block]:
        """Returns the stream's free blocks before `below` in search order (all if None), the last one first."""
        blocks = self._free.get(stream, ())
        end = len(blocks)
        if below is not None:
            end = blocks.index((below.size, below.counter, below.address, below))
        return [entry[3] for entry in reversed(blocks[:end])]

    def __iter__(self) -> Iterator[Block]:
        """Yields all free blocks, stream by stream; the pool may change during the iteration."""
        return iter([entry[3] for stream in sorted(self._free) for entry in self._free[stream]])

    def add_unmapped(self, block: Block) -> None:
        """Adds a range of an expandable segment that has no memory."""
        ranges = self._unmapped.get(block.stream)
        if ranges is None:
            ranges = self._unmapped[block.stream] = SortedList()
        ranges.add((block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Removes such a range."""
        self._unmapped[block.stream].remove((block.address, block))

    def unmapped(self, stream: int) -> list[Block]:
        """Returns the stream's ranges without memory, in the order of their addresses."""
        return [entry[1] for entry in self._unmapped.get(stream, ())]
