"""Records a program's requests to the allocator in order, and replays them on a GPU of a different capacity.

A replay assumes that the program makes the same requests whatever the capacity. That may not hold for a program that
reads how much memory is free, or that catches an out-of-memory error.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.allocator.physical import PAGE, Device
from simgpu.allocator.settings import AllocatorSettings

LONGEST = 100_000
"""The most requests that are recorded; a longer record is dropped."""

MALLOC, FREE, FAILED, USE, EMPTY = range(5)


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    `served` says whether every request that was served in the run was served again, `failures` how many of those that
    failed in the run failed again, and `reserved` is the most bytes reserved.
    """

    served: bool
    failures: int
    reserved: int


class Requests:
    """A record of requests. `unusable` is "" or the reason why there is no complete record."""

    def __init__(self) -> None:
        self.unusable = ""
        self._entries = array("q")  # for each request, its kind plus 8 times its operand
        self._streams = array("q")  # for each malloc, failed malloc and use

    def __len__(self) -> int:
        return len(self._entries)

    def give_up(self, reason: str) -> None:
        """Drops the record, because of `reason`."""
        self.unusable = self.unusable or reason
        self._entries, self._streams = array("q"), array("q")

    def malloc(self, nbytes: int, stream: int) -> None:
        """Records a request that was served. Served requests are numbered from 0."""
        if self.unusable:
            return
        self._entries.append(nbytes << 3)
        self._streams.append(stream)
        if len(self._entries) > LONGEST:
            self.give_up(f"the record is longer than {LONGEST:,} requests")

    def failed(self, nbytes: int, stream: int) -> None:
        """Records a request that raised an error which the program caught."""
        if not self.unusable:
            self._entries.append(nbytes << 3 | FAILED)
            self._streams.append(stream)

    def free(self, number: int) -> None:
        """Records that the block of a served request was freed."""
        if not self.unusable:
            self._entries.append(number << 3 | FREE)

    def use(self, number: int, stream: int) -> None:
        """Records that the block of a served request was used on a different stream."""
        if not self.unusable:
            self._entries.append(number << 3 | USE)
            self._streams.append(stream)

    def empty_cache(self) -> None:
        """Records that the cache was returned to the device."""
        if not self.unusable:
            self._entries.append(EMPTY)

    def replay(self, capacity: int, context: int, settings: AllocatorSettings, version: tuple[int, ...]) -> Replayed:
        """Replays the record on a GPU of `capacity` bytes, of which the CUDA context uses `context`."""
        device = Device(total_memory=capacity, context=context)
        allocator = CachingAllocator(device, settings, version, record_event=lambda stream: lambda: True, quiet=True)
        blocks: list = []
        failures = 0
        streams = iter(self._streams)
        for entry in self._entries:
            kind, operand = entry & 7, entry >> 3
            if kind == FREE:
                allocator.free(blocks[operand])
                blocks[operand] = None
            elif kind == MALLOC:
                try:
                    blocks.append(allocator.malloc(operand, next(streams)))
                except OutOfMemory:
                    return Replayed(False, failures, allocator.max_reserved)
            elif kind == FAILED:
                stream = next(streams)
                try:
                    block = allocator.malloc(operand, stream)
                except OutOfMemory:
                    failures += 1
                else:
                    assert block is not None, "a request that failed is of more than 0 bytes"
                    allocator.free(block)
            elif kind == USE:
                allocator.record_stream(blocks[operand], next(streams))
            else:
                allocator.empty_cache()
        return Replayed(True, failures, allocator.max_reserved)

    def smallest(self, low: int, high: int, served: Callable[[int], bool]) -> int:
        """Returns the smallest capacity, to a page, above `low` and up to `high`, at which every request is served."""
        least, most = low // PAGE, -(-high // PAGE)
        while most - least > 1:
            middle = (least + most) // 2
            if served(middle * PAGE):
                most = middle
            else:
                least = middle
        return min(most * PAGE, high)
