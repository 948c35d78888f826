"""Expandable segments: a range of addresses per stream and pool that memory is mapped into as needed.

Active with `expandable_segments:True`. A block of such a segment is allocated, free, or *unmapped*, which means
addresses without memory. Source: `find_expandable_block`, `map_block`, `try_allocate_expandable_block`, `unmap_block`
in `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable

from simgpu.allocator.blocks import Block, BlockPool, Segment
from simgpu.allocator.event_log import History
from simgpu.allocator.physical import Device
from simgpu.allocator.statistics import Statistics


class ExpandableSegments:
    """The expandable segments of one device's allocator.

    `segments` is the allocator's table of segments by address. `new_counter()` and `split_counter(block)` return the
    tie-breaking counters of `BlockPool`.
    """

    def __init__(
        self,
        device: Device,
        statistics: Statistics,
        history: History,
        segments: dict[int, Segment],
        new_counter: Callable[[], int],
        split_counter: Callable[[Block], int],
    ) -> None:
        self._device = device
        self._statistics = statistics
        self._history = history
        self._segments = segments
        self._new_counter = new_counter
        self._split_counter = split_counter

    def allocate(self, pool: BlockPool, stream: int, size: int, granule: int, frames: list | None) -> Block | None:
        """Returns a mapped block of at least `size` bytes, removed from the pool, or None if the device is full.

        A new segment maps `granule` bytes at once, which is the size of an ordinary segment of the pool. After a
        failure, what was mapped before it stays in the pool as free blocks.
        """
        block = self._with_room(pool, stream, size, granule)
        if not block.mapped and not self._map(block, min(block.size, size), frames):
            return None
        while block.size < size:
            following = block.next
            assert following is not None, "_with_room found room, so free blocks follow until there is enough"
            if not self._map(following, min(size - block.size, following.size), frames):
                return None
            block = following  # it has absorbed the block before it
        pool.remove(block)
        return block

    def unmap(self, block: Block, frames: list | None) -> None:
        """Returns the memory of the whole granules inside a free block to the device; its ends stay free blocks."""
        segment, pool = block.segment, block.pool
        granule = segment.granule
        start = segment.address + -(-(block.address - segment.address) // granule) * granule
        end = segment.address + (block.address + block.size - segment.address) // granule * granule
        if start >= end:
            return
        pool.remove(block)
        self._device.unmap(end - start)
        if start > block.address:
            head = Block(block.address, start - block.address, segment, self._split_counter(block))
            head.insert_between(block.prev, block)
            pool.add(head)
        if block.address + block.size > end:
            tail = Block(end, block.address + block.size - end, segment, self._split_counter(block))
            tail.insert_between(block, block.next)
            pool.add(tail)
        block.address, block.size, block.mapped = start, end - start, False
        for neighbour in (block.prev, block.next):
            if neighbour is not None and not neighbour.mapped:
                pool.remove_unmapped(neighbour)
                block.absorb(neighbour)
        pool.add_unmapped(block)
        self._statistics.reserved(pool, start - end)
        self._statistics.num_device_free += 1
        if self._history.enabled:
            frames = frames or block.segment_frames
            self._history.record("segment_unmap", start, end - start, block.stream, frames, pool.id)
        if not block.is_split:
            pool.remove_unmapped(block)
            del self._segments[segment.address]

    def _with_room(self, pool: BlockPool, stream: int, size: int, granule: int) -> Block:
        """Returns the start of the first run (by address) of free and unmapped blocks of `size` bytes, else of a new
        segment.

        This also applies to a request larger than a segment's addresses, which then cannot be mapped and leaves the new
        segment empty (torch 2.13).
        """
        for block in pool.unmapped(stream):
            if block.prev is not None and not block.prev.active:
                block = block.prev
            room, following = 0, block
            while room < size and following is not None and not following.active:
                room += following.size
                following = following.next
            if room >= size:
                return block
        return self._new_segment(pool, stream, granule)

    def _new_segment(self, pool: BlockPool, stream: int, granule: int) -> Block:
        """Returns the unmapped block of a new segment, whose addresses span 9/8 of the device's memory."""
        total = self._device.total_memory
        span = -(-(total + total // 8) // granule) * granule
        segment = Segment(self._device.reserve_range(span), span, stream, pool, granule)
        block = Block(segment.address, span, segment, self._new_counter())
        block.mapped = False
        segment.first = block
        self._segments[segment.address] = segment
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int, frames: list | None) -> bool:
        """Maps memory to the first `size` bytes (whole granules) of an unmapped block, and frees it.

        Returns False if the device is full.
        """
        granule, pool = block.segment.granule, block.pool
        size = -(-size // granule) * granule
        if not self._device.map(size):
            return False
        start = block.address
        pool.remove_unmapped(block)
        block.mapped = True
        if size < block.size:
            rest = Block(start + size, block.size - size, block.segment, self._split_counter(block))
            rest.mapped = False
            rest.insert_between(block, block.next)
            pool.add_unmapped(rest)
            block.size = size
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.mapped and not neighbour.active:
                pool.remove(neighbour)
                block.absorb(neighbour)
        pool.add(block)
        self._statistics.reserved(pool, size)
        self._statistics.num_device_alloc += 1
        if self._history.enabled:
            self._history.record("segment_map", start, size, block.stream, frames, pool.id)
        if block.prev is None and block.segment_frames is None:
            block.segment_frames = frames
        return True
