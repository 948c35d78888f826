"""Keeps freed blocks that other streams may still use until an event on each of those streams has passed.

Source: `insert_events`, `process_events` and `cuda_events` in `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from simgpu.allocator.blocks import Block
from simgpu.allocator.private_pools import PrivatePool

CUDA_DEVICE_TYPE = 1
FIBONACCI = 11400714819323198485
"""2**64 divided by the golden ratio: the multiplier of `ska::flat_hash_map` (c10/util/flat_hash_map.h)."""


class PendingFrees:
    """Blocks that wait for streams, in the order in which they were freed, per stream.

    `record_event(stream)` returns a callable that says whether the stream has passed this point; with None only
    `complete` completes events. `index` is the number of the GPU, which may change while nothing waits. Several streams
    are processed in the order of PyTorch's hash table: by the top bits of the hashed stream, as many as the table has.
    It starts with 4 slots, and doubles when more than half are used.
    """

    __slots__ = ("_queues", "_slots", "index", "record_event")

    def __init__(self, record_event: Callable[[int], Callable[[], bool]] | None, index: int) -> None:
        self.record_event = record_event
        self.index = index
        self._queues: dict[int, deque[tuple[Block, Callable[[], bool]]]] = {}
        self._slots = 4

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, block: Block) -> None:
        """Makes a freed block wait for every stream that it was used on."""
        streams, block.stream_uses = block.stream_uses, None
        for stream in streams or ():
            happened = _not_yet if self.record_event is None else self.record_event(stream)
            block.event_count += 1
            if stream not in self._queues:
                if 2 * (len(self._queues) + 1) > self._slots:
                    self._slots *= 2
                self._queues[stream] = deque()
            self._queues[stream].append((block, happened))

    def complete(self, stream: int | None = None) -> None:
        """Marks every event (of one stream, or of all) as completed."""
        for key in self._queues if stream is None else {stream} & self._queues.keys():
            self._queues[key] = deque((block, _happened) for block, _ in self._queues[key])

    def finished(self, private: PrivatePool | None = None) -> Iterator[Block]:
        """Yields the blocks whose last event has completed, each once; only those of a private pool, if one is
        given.
        """
        for stream in sorted(self._queues, key=self._slot):
            queue, others = self._queues[stream], []
            while queue and queue[0][1]():
                block, happened = queue.popleft()
                if private is not None and block.pool.owner is not private:
                    others.append((block, happened))
                    continue
                block.event_count -= 1
                if block.event_count == 0:
                    yield block
            queue.extendleft(reversed(others))
            if not queue:
                del self._queues[stream]

    def _slot(self, stream: int) -> int:
        hashed = (CUDA_DEVICE_TYPE << 56 | self.index << 48 | stream) * FIBONACCI % 2**64
        return hashed * self._slots >> 64


def _happened() -> bool:
    return True


def _not_yet() -> bool:
    return False
