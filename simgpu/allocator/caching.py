"""Models PyTorch's caching allocator for CUDA devices, exact to the byte, without torch and without a GPU.

Tensors are not allocated from the device one by one. The allocator requests *segments* from the device (`cudaMalloc`),
splits them into *blocks*, and keeps freed blocks for the next request:

    malloc          round the request up, find a free block or get a segment, split off what is not needed
    free            merge the block with free neighbours and put it back into its pool
    empty_cache     return segments that are completely free to the device

`PYTORCH_NO_CUDA_MEMORY_CACHING` and private pools with a user's allocator are not modelled.

Source of each rule: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch; the functions' names are given below. Checked
against torch 2.13.0's own allocator by `tools/oracle/allocator_sequences.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

from simgpu.allocator import snapshot as snapshots
from simgpu.allocator.blocks import LARGE, SMALL, Block, BlockPool, Segment
from simgpu.allocator.event_log import ALL, DEFAULT_POOL, STATE, History
from simgpu.allocator.expandable import ExpandableSegments
from simgpu.allocator.out_of_memory import InvalidFree, OutOfMemory, out_of_memory, rejected, too_large
from simgpu.allocator.pending_frees import PendingFrees
from simgpu.allocator.physical import Device
from simgpu.allocator.private_pools import PoolId, PrivatePool, PrivatePools
from simgpu.allocator.rounding import MIN_BLOCK_SIZE, SMALL_BUFFER, SMALL_SIZE, round_size, segment_size
from simgpu.allocator.settings import AllocatorSettings, SettingsError
from simgpu.allocator.statistics import Statistics

__all__ = ["Block", "CachingAllocator", "OutOfMemory", "Segment"]

MAX_REQUEST = 2**60
"""Requests of this many bytes or more are refused at once."""

log = logging.getLogger(__name__)


class CachingAllocator:
    """The caching allocator of one device.

    - `device`: the memory that it allocates from.
    - `settings`: see `AllocatorSettings`; None for PyTorch's defaults. A function is called for them at first use, as
      PyTorch reads its environment variables. The attribute may be replaced later.
    - `torch_version`: the version whose rules apply, e.g. `(2, 13)`.
    - `clock`: returns the time in microseconds, for the history.
    - `frames`: returns the current Python frames, innermost first, as dictionaries with `filename`, `line`,
      `name`; called only while a history is recorded.
    - `index`: the number of the GPU in texts and snapshots; see `is_gpu`.
    - `record_event`: called with a stream when a block used on it is freed; returns a callable that says
      whether the stream has passed this point. Without it only `synchronize` does.
    - `quiet`: whether nothing is logged, for a replay.
    """

    def __init__(
        self,
        device: Device,
        settings: AllocatorSettings | Callable[[], AllocatorSettings] | None = None,
        torch_version: tuple[int, ...] = (2, 13),
        clock: Callable[[], int] | None = None,
        frames: Callable[[], list] | None = None,
        *,
        index: int = 0,
        record_event: Callable[[int], Callable[[], bool]] | None = None,
        quiet: bool = False,
    ) -> None:
        self.device = device
        self._quiet = quiet
        self._read_settings = settings if callable(settings) else lambda: settings or AllocatorSettings()
        self.torch_version = tuple(torch_version)[:2]
        self.index, self._gpus = index, index + 1
        self.history = History(frames, clock)
        self._pending = PendingFrees(record_event, index)
        self._statistics = Statistics()
        self._small, self._large = BlockPool(SMALL), BlockPool(LARGE)
        self.pools = PrivatePools()
        self.observers: list[Callable[[int, int, int, int], None]] = []
        """Called before an OutOfMemory with the GPU's number and three sizes in bytes: requested, allowed, free."""
        self.used = False  # whether any memory was ever requested from the device
        self._deferred: dict[Block, None] = {}
        self._captured_uses: dict[Block, set[int]] = {}
        self._segments: dict[int, Segment] = {}
        self._counter = 0
        self._allowed: int | None = None
        self._reported_split_size = -1
        self._expandable = ExpandableSegments(
            device,
            self._statistics,
            self.history,
            self._segments,
            self._new_counter,
            self._split_counter,
        )
        if not callable(settings):
            self.read_settings()

    @cached_property
    def settings(self) -> AllocatorSettings:
        """Returns the current settings, which are read at first use. Raises what reading them raises."""
        found = self._read_settings()
        # PyTorch reports the initial value, even if the settings change later.
        self._reported_split_size = found.as_snapshot()["max_split_size"]
        self.set_memory_fraction(found.per_process_memory_fraction)
        return found

    def read_settings(self) -> None:
        """Reads the settings now if they are not read yet. Raises what reading them raises."""
        _ = self.settings

    @property
    def has_read_settings(self) -> bool:
        """Returns whether the settings have been read, at first use or by `read_settings`."""
        return "settings" in vars(self)

    def is_gpu(self, index: int, of: int) -> None:
        """Sets the number of its GPU, and how many GPUs the process sees, from now on."""
        self.index, self._gpus = index, of
        self._pending.index = index

    # Counters.

    @property
    def allocated(self) -> int:
        """Returns the bytes in allocated blocks: `torch.cuda.memory_allocated()`."""
        return self._statistics.allocated_bytes.all.current

    @property
    def max_allocated(self) -> int:
        """Returns the peak of `allocated`: `torch.cuda.max_memory_allocated()`."""
        return self._statistics.allocated_bytes.all.peak

    @property
    def reserved(self) -> int:
        """Returns the bytes in segments: `torch.cuda.memory_reserved()`."""
        return self._statistics.reserved_bytes.all.current

    @property
    def max_reserved(self) -> int:
        """Returns the peak of `reserved`: `torch.cuda.max_memory_reserved()`."""
        return self._statistics.reserved_bytes.all.peak

    def stats(self) -> dict:
        """Returns every counter, nested as `torch._C._cuda_memoryStats` returns them."""
        return self._statistics.as_dict(self._reported_split_size, self.torch_version)

    def reset_peak_stats(self) -> None:
        """Resets every peak to its current value."""
        self._statistics.reset_peak()

    def reset_accumulated_stats(self) -> None:
        """Resets every running sum and count to zero."""
        self._statistics.reset_accumulated()

    def set_memory_fraction(self, fraction: float) -> None:
        """Limits this process to a share of the device: `torch.cuda.set_per_process_memory_fraction`.

        Raises ValueError for a fraction outside 0…1. 1 lifts the limit.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._allowed = math.floor(fraction * self.device.total_memory + 0.5) if fraction < 1 else None

    @property
    def memory_fraction(self) -> float:
        """Returns the device's share that this process may allocate: `torch.cuda.get_per_process_memory_fraction`."""
        return 1.0 if self._allowed is None else self._allowed / self.device.total_memory

    @property
    def recording(self) -> bool:
        """Returns whether a history is being recorded."""
        return self.history.enabled

    def set_settings(self, text: str) -> None:
        """Changes the settings of the running allocator: `torch.cuda.memory._set_allocator_settings`.

        Existing blocks and segments stay as they are. Later requests, splits and frees follow the new settings, except
        that `per_process_memory_fraction` counts only at the start. Raises as `AllocatorSettings.updated`; options
        before the error in `text` take effect nevertheless, as in PyTorch.
        """
        try:
            self.settings = self.settings.updated(text)
        except SettingsError as error:
            self.settings = error.settings
            raise

    # Requests.

    def malloc(self, nbytes: int, stream: int = 0) -> Block | None:
        """Returns a block of at least `nbytes` bytes for work on `stream`, or None for 0 bytes.

        Raises OutOfMemory if the device has no room even after every free segment was returned, and ValueError for a
        negative number of bytes. Raises InvalidFree if `max_split_size` was lowered below the size of a free block that
        is only a part of a segment, and that block is chosen to be returned.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError(f"expected a number of bytes of at least 0, got {nbytes}")
            return None
        if nbytes >= MAX_REQUEST:
            raise too_large(nbytes)
        frames = self.history.frames(STATE) if self.history.enabled else None
        size = round_size(nbytes, self.settings.roundup_power2_divisions)
        if (self._pending or self._deferred) and not self.pools.captures:
            self._free_finished(frames)
        pool = self._small if size <= SMALL_SIZE else self._large
        if self.pools.active:
            pool = self._pool_for(size, stream)
        block = self._find_free_block(pool, size, stream)
        if block is None:
            alloc_size = segment_size(size, self.settings.large_segment_size)
            block = self._get_new_block(_Request(nbytes, size, alloc_size, pool, stream, frames))
        return self._hand_out(block, size, nbytes, frames)

    def free(self, block: Block) -> None:
        """Frees a block. Raises ValueError if it was freed before."""
        if not block.allocated:
            raise ValueError(f"{block!r} is not allocated: was it freed twice?")
        block.allocated = False
        pool = block.pool.index
        self._statistics.block_given_back(pool, block.size)
        history = self.history
        frames = None
        if history.enabled:
            frames = history.frames(ALL)
            history.record(
                *("free_requested", block.address, block.requested_size, block.stream),
                frames or block.frames,
                block.pool.id,
            )
        if self._is_oversize(block.size):
            self._statistics.oversize_allocations.decrease(1)
        if block.stream_uses and self.pools.captures:
            self._deferred[block] = None  # no events in a capture
        elif block.stream_uses:
            self._pending.add(block)
        else:
            self._free_block(block, frames)

    def record_stream(self, block: Block, stream: int) -> None:
        """Marks the block as used on `stream` too: once freed, it stays active until that stream has caught up.

        Raises ValueError if the block is not allocated.
        """
        if not block.allocated:
            raise ValueError(f"{block!r} is not allocated")
        if stream != block.stream:
            if block.stream_uses is None:
                block.stream_uses = {}
            block.stream_uses[stream] = None
            if self.pools.captures:
                self._captured_uses.setdefault(block, set()).add(stream)

    def synchronize(self, stream: int | None = None) -> None:
        """Marks all work of the device as done (on one stream, or on all).

        As on a GPU, blocks that waited for it return to their pool at the next `malloc` or `empty_cache`.
        """
        self._pending.complete(stream)

    def empty_cache(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """Returns every segment that is completely free to the device: `torch.cuda.empty_cache`.

        With `pool_id`, only those of this private pool, once all of its users have released it.
        """
        self._release_cached_blocks(self.history.frames(ALL) if self.history.enabled else None, pool_id)

    def drop_pool(self, pool_id: PoolId) -> None:
        """Releases a private pool for one user; after the last one, its free segments are returned to the device."""
        self.pools.release(pool_id)
        self.empty_cache(pool_id)

    # History and snapshots.

    def record_history(
        self,
        enabled: str | None = "all",
        *,
        context: str | None = "all",
        max_entries: int = 2**63 - 1,
        clear_history: bool = False,
        skip_actions: Iterable[str] = (),
    ) -> None:
        """Starts or stops recording events: `torch.cuda.memory._record_memory_history`, see `History`."""
        self.history.configure(enabled, context, max_entries, clear_history, tuple(skip_actions))

    def frames_of(self, address: int) -> list | None:
        """Returns the frames recorded when the block at this address was allocated, or None."""
        for segment in self._segments.values():
            for block in segment:
                if block.address == address and block.allocated:
                    return block.frames
        return None

    def annotate(self, address: int, text: str) -> None:
        """Records a text for the block at this address: `torch.cuda.memory._annotate_tensor` (torch 2.14).

        Nothing is recorded for an address without an allocated block.
        """
        for block in (block for segment in self._segments.values() for block in segment):
            if block.address == address and block.allocated and self.history.enabled:
                pool, frames = block.pool.id, self.history.frames(ALL)
                self.history.record("annotate", address, block.requested_size, block.stream, frames, pool, text)

    def snapshot_segments(self, pool_id: PoolId = DEFAULT_POOL) -> list[dict]:
        """Returns the segments and their blocks by address, as `torch.cuda.memory_snapshot()` does.

        With the id of a private pool, only that pool's.
        """
        chosen = [one for one in self._segments.values() if pool_id in (DEFAULT_POOL, one.pool.id)]
        segments = snapshots.describe_segments(chosen, self.index)
        if self.history.enabled:
            active = sum(segment["active_size"] for segment in segments)
            self.history.record("snapshot", 0, active, 0, None)
        return segments

    def snapshot(self, pool_id: PoolId = DEFAULT_POOL, with_events: bool = True) -> dict:
        """Returns segments (all, or a private pool's), events and settings: `torch.cuda.memory._snapshot()`."""
        trace = self.history.as_trace(self.torch_version) if with_events else []
        return {
            "segments": self.snapshot_segments(pool_id),
            "device_traces": [trace if index == self.index else [] for index in range(self._gpus)],
            "allocator_settings": self.settings.as_snapshot(self.torch_version),
            "external_annotations": [],
            **({"host_segments": [], "host_traces": []} if self.torch_version >= (2, 14) else {}),
        }

    # Finding a block (get_pool, get_free_block).

    def _pool_for(self, size: int, stream: int) -> BlockPool:
        """Returns the pool that serves a request now: the private pool whose filter accepts it, or the allocator's
        own.
        """
        private = self.pools.chosen(stream)
        if private is not None:
            return private.small if size <= SMALL_SIZE else private.large
        return self._small if size <= SMALL_SIZE else self._large

    def _find_free_block(self, pool: BlockPool, size: int, stream: int, expandable: bool = True) -> Block | None:
        """Removes the best free block for `size` bytes from the pool and returns it, or None.

        `expandable` says whether a block of an expandable segment may be used.
        """
        if self._collects_garbage():
            pool.searches += 1
        block = pool.best_fit(stream, size)
        if block is not None and block.segment.granule:
            block = self._best_among_expandable(pool, size, stream, expandable)
        if block is None:
            return None
        settings = self.settings
        split = settings.max_split_size
        if split is not None:
            # A block too large to be split must not go to a small request …
            if size < split and block.size >= split:
                return None
            # … nor to a large one that leaves too much of it unused.
            if size >= split and block.size >= size + settings.max_non_split_rounding_size:
                return None
        pool.remove(block)
        return block

    def _best_among_expandable(self, pool: BlockPool, size: int, stream: int, expandable: bool) -> Block | None:
        """Returns the best fit among blocks that can grow: each counts with the unmapped addresses that follow it.

        If expandable segments have been turned off since, their blocks are skipped.
        """
        blocks = pool.from_size(stream, size)
        if not (expandable and self.settings.expandable_segments):
            return next((block for block in blocks if not block.segment.granule), None)
        best = next(blocks)
        for block in blocks:
            if not best.segment.granule or _room_to_grow(block) >= _room_to_grow(best):
                break
            best = block
        return best

    # Getting memory from the device (alloc_block and what malloc does when it fails).

    def _get_new_block(self, request: _Request) -> Block:
        """Returns a block from a new segment, after returning cached segments if the device is full."""
        if self._collects_garbage():
            self._collect_garbage(request.frames)
        self.used = True
        block = self._allocate(request)
        if block is None and request.pool.owner is None:
            block = self._from_overflow(request)
        if block is None and self._release_oversize_blocks(request):
            block = self._allocate(request)
        if block is None and not self.pools.captures:
            self._release_cached_blocks(request.frames)
            self._statistics.num_alloc_retries += 1
            block = self._allocate(request)
        if block is None:
            raise self._out_of_memory(request)
        return block

    def _from_overflow(self, request: _Request) -> Block | None:
        """Returns a free block of a private pool that serves requests after others have failed
        (try_mempool_fallback).
        """
        for private in self.pools.overflow():
            pool = private.small if request.pool.is_small else private.large
            block = self._find_free_block(pool, request.size, request.stream, expandable=False)
            if block is not None:
                return block
        return None

    def _allocate(self, request: _Request) -> Block | None:
        """Returns a new segment as one block, or a newly mapped block; None if there is no room."""
        settings, pool, alloc_size = self.settings, request.pool, request.alloc_size
        if self._allowed is not None and self.reserved + alloc_size > self._allowed:
            return None
        if settings.throw_on_cudamalloc_oom:
            limit = int(settings.per_process_memory_fraction * self.device.total_memory)
            if self.reserved + alloc_size > limit:
                self._statistics.num_oom_rejections += 1
                raise rejected(request.nbytes, alloc_size)
        if settings.expandable_segments:
            granule = SMALL_BUFFER if pool.is_small else settings.large_segment_size
            return self._expandable.allocate(pool, request.stream, request.size, granule, request.frames)
        address = self.device.malloc(alloc_size)
        if address is None:
            if not self._quiet:
                free, total = self.device.mem_get_info()
                log.info(
                    "memory allocation failed with OOM on device %d while trying to allocate %d bytes "
                    "(free: %d, total: %d).",
                    *(self.index, alloc_size, free, total),
                )
            return None
        segment = Segment(address, alloc_size, request.stream, pool)
        block = segment.first = Block(address, alloc_size, segment, self._new_counter())
        block.segment_frames = request.frames
        self._segments[address] = segment
        statistics = self._statistics
        statistics.segment.increase(pool.index, 1)
        statistics.reserved(pool, alloc_size)
        statistics.num_device_alloc += 1
        if self._is_oversize(alloc_size):
            statistics.oversize_segments.increase(1)
        if self.history.enabled:
            self.history.record("segment_alloc", address, alloc_size, request.stream, request.frames, pool.id)
        return block

    def _out_of_memory(self, request: _Request) -> OutOfMemory:
        if self.history.enabled:
            free = self.device.free_memory
            self.history.record("oom", free, request.size, request.stream, request.frames, request.pool.id)
        self._statistics.num_ooms += 1
        allowed = self.device.total_memory if self._allowed is None else self._allowed
        for observer in tuple(self.observers):
            observer(self.index, request.alloc_size, allowed, self.device.free_memory)
        return out_of_memory(
            self.device,
            self.index,
            size=request.size,
            alloc_size=request.alloc_size,
            allowed=self._allowed,
            allocated=self.allocated,
            reserved=self.reserved,
            in_private_pools=self.pools.free_bytes(),
        )

    # Allocating and freeing (should_split, alloc_found_block, free_block, try_merge_blocks).

    def _should_split(self, block: Block, size: int) -> bool:
        """Returns whether the rest of the block after `size` bytes becomes a separate free block."""
        if block.pool.id in self.pools.no_split:
            return False
        remaining = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK_SIZE
        split = self.settings.max_split_size
        return remaining > SMALL_SIZE and (split is None or size < split)

    def _hand_out(self, block: Block, size: int, requested: int, frames: list | None) -> Block:
        """Splits `size` bytes off the front of a free block, and marks them as allocated."""
        pool = block.pool
        statistics = self._statistics
        counts_splits = not block.segment.granule
        was_split = block.prev is not None or block.next is not None
        if self._should_split(block, size):
            rest = block
            block = Block(rest.address, size, rest.segment, self._split_counter(rest))
            block.insert_between(rest.prev, rest)
            rest.address += size
            rest.size -= size
            pool.add(rest)
            if counts_splits:
                if was_split:
                    statistics.inactive_split_bytes.decrease(pool.index, size)
                else:
                    statistics.inactive_split_bytes.increase(pool.index, rest.size)
                    statistics.inactive_split.increase(pool.index, 1)
        elif was_split and counts_splits:
            statistics.inactive_split_bytes.decrease(pool.index, block.size)
            statistics.inactive_split.decrease(pool.index, 1)
        block.allocated = block.active = True
        block.requested_size = requested
        block.frames = frames
        if self.history.enabled:
            self.history.record("alloc", block.address, requested, block.stream, frames, pool.id)
        statistics.block_handed_out(pool.index, block.size, requested)
        if self._is_oversize(block.size):
            statistics.oversize_allocations.increase(1)
        return block

    def _free_block(self, block: Block, frames: list | None) -> None:
        """Merges a block that is no longer in use with its free neighbours, and puts it into its pool."""
        pool = block.pool
        size = block.size
        if self.history.enabled:
            self.history.record(
                *("free_completed", block.address, block.requested_size, block.stream),
                frames or block.frames,
                pool.id,
            )
        block.active = False
        block.frames = None
        change_blocks = change_bytes = 0
        for neighbour in (block.prev, block.next):
            if neighbour is not None and not neighbour.active and neighbour.mapped:
                pool.remove(neighbour)
                change_blocks -= 1
                change_bytes -= neighbour.size
                block.absorb(neighbour)
        pool.add(block)
        statistics = self._statistics
        if not block.segment.granule:
            if block.prev is not None or block.next is not None:
                change_blocks += 1
                change_bytes += block.size
            statistics.inactive_split.change(pool.index, change_blocks)
            statistics.inactive_split_bytes.change(pool.index, change_bytes)
        statistics.block_inactive(pool.index, size, block.requested_size)

    # Returning memory to the device (release_cached_blocks, release_available_cached_blocks, release_block).

    def _release_cached_blocks(self, frames: list | None, pool_id: PoolId = DEFAULT_POOL) -> None:
        """Waits for all streams, then returns every segment that is completely free to the device.

        This includes released private pools. If a private pool is named, only its segments are returned.
        """
        if pool_id == DEFAULT_POOL and not self.pools.captures:
            self._wait_for_all(frames)
            self._release_blocks(self._large, frames)
            self._release_blocks(self._small, frames)
        for private in self.pools.freeable(pool_id):
            if pool_id != DEFAULT_POOL:
                self._wait_for_all(frames, private)
            self._release_blocks(private.small, frames)
            self._release_blocks(private.large, frames)
            self.pools.drop_if_empty(private)

    def _wait_for_all(self, frames: list | None, private: PrivatePool | None = None) -> None:
        """Waits for the streams that blocks wait for, or those of a private pool (synchronize_and_free_events)."""
        self._statistics.num_sync_all_streams += 1
        self._insert_deferred(frames)
        self._pending.complete()
        for block in self._pending.finished(private):
            self._free_block(block, frames)

    def _release_blocks(self, pool: BlockPool, frames: list | None) -> None:
        """Returns every completely free segment of a pool to the device."""
        expandable = []
        for block in pool:
            if block.segment.granule:
                expandable.append(block)
            elif not block.is_split:
                self._release_block(block, frames)
        for block in expandable:
            self._expandable.unmap(block, frames)

    def _release_oversize_blocks(self, request: _Request) -> bool:
        """With `max_split_size`, returns just enough oversize free blocks to the device for the request.

        Returns whether it was enough.
        """
        split, pool, frames = self.settings.max_split_size, request.pool, request.frames
        if split is None:
            return False
        wanted = max(request.size, split)
        fitting = pool.best_fit(request.stream, wanted)
        if fitting is not None and not fitting.segment.granule:
            self._release_block(fitting, frames)
            return True
        released = 0
        for block in pool.largest_first(request.stream, below=fitting):
            if released >= wanted or block.size < split:
                break
            if not block.segment.granule:
                released += block.size
                self._release_block(block, frames)
        return released >= wanted

    def _release_block(self, block: Block, frames: list | None) -> None:
        """Returns the segment of a free block to the device (`cudaFree`).

        Raises InvalidFree if the block is only a part of its segment.
        """
        pool = block.pool
        statistics = self._statistics
        statistics.num_device_free += 1
        if self.history.enabled:
            frames = frames or block.segment_frames
            self.history.record("segment_free", block.address, block.size, block.stream, frames, pool.id)
        if block.is_split:
            raise InvalidFree(block)
        self.device.free(block.address)
        statistics.segment.decrease(pool.index, 1)
        statistics.reserved(pool, -block.size)
        if self._is_oversize(block.size):
            statistics.oversize_segments.decrease(1)
        pool.remove(block)
        del self._segments[block.address]

    def _collects_garbage(self) -> bool:
        return self._allowed is not None and self.settings.garbage_collection_threshold > 0

    def _collect_garbage(self, frames: list | None) -> None:
        """Returns the large segments that have been free longest (garbage_collect_cached_blocks).

        It starts when more than `garbage_collection_threshold` of the allowed memory is reserved. The age of a free
        block is the number of searches in its pool since it was freed; those of average age or more go first.
        """
        assert self._allowed is not None, "asked by _collects_garbage"
        target = self.reserved - int(self.settings.garbage_collection_threshold * self._allowed)
        pool = self._large
        blocks = [block for block in pool if not block.is_split]
        total_age = sum(pool.searches - block.searches_before for block in blocks)
        count, reclaimed, released = len(blocks), 0, True
        while reclaimed < target and released and count:
            threshold = total_age / count
            released = False
            for block in [b for b in pool if not b.is_split and not b.segment.granule]:
                age = pool.searches - block.searches_before
                if age >= threshold:
                    released = True
                    reclaimed += block.size
                    total_age -= age
                    count -= 1
                    self._release_block(block, frames)

    def _free_finished(self, frames: list | None) -> None:
        """Frees the blocks that no other stream uses any more (process_events)."""
        self._insert_deferred(frames)
        for block in self._pending.finished():
            self._free_block(block, frames)

    def _insert_deferred(self, frames: list | None) -> None:
        """Makes blocks that were freed in a capture wait for the streams that used them before it.

        (insert_events_deferred_until_no_capture)
        """
        for block in self._deferred:
            captured = self._captured_uses.pop(block, set())
            block.stream_uses = {stream: None for stream in block.stream_uses or () if stream not in captured}
            self._pending.add(block)
            if block.event_count == 0:
                self._free_block(block, frames)
        self._deferred.clear()

    # Details.

    def _is_oversize(self, size: int) -> bool:
        split = self.settings.max_split_size
        return split is not None and size >= split

    def _new_counter(self) -> int:
        """Returns the tie-breaker of a block that is a whole new segment.

        Among free blocks of one size, torch up to 2.11 takes the one at the lowest address (all counters are 0), 2.12
        the oldest block, and 2.13 and later one of the oldest segment, there at the lowest address.
        """
        if self.torch_version < (2, 12):
            return 0
        self._counter += 1
        return self._counter

    def _split_counter(self, block: Block) -> int:
        """Returns the tie-breaker of a block that is split off from `block`."""
        return self._new_counter() if self.torch_version == (2, 12) else block.counter


class _Request(NamedTuple):
    """A request that no free block can serve: `nbytes`, its rounded `size`, and `alloc_size` to request from the
    device.
    """

    nbytes: int
    size: int
    alloc_size: int
    pool: BlockPool
    stream: int
    frames: list | None


def _room_to_grow(block: Block) -> int:
    """Returns the size of a block plus the unmapped addresses that follow it directly."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
