"""The counters of the caching allocator, as `torch.cuda.memory_stats()` reports them.

Each quantity is a *stat array*: one counter for the whole device (`all`) and one per pool (`small_pool`, `large_pool`).
Each counter has four numbers, all in bytes or all in blocks:

- `current`: now;
- `peak`: the largest `current` since the last `reset_peak_memory_stats`;
- `allocated`, `freed`: running sums of the increases and of the decreases.

Source: `c10/core/CachingDeviceAllocator.h` (`Stat`, `StatArray`, `DeviceStats`) of PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.allocator.blocks import BlockPool


class Stat:
    """One counter: `current`, `peak`, and the running sums `allocated` and `freed`."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        """Adds `amount` (bytes or blocks) to the counter."""
        self.allocated += amount
        current = self.current = self.current + amount
        if current > self.peak:
            self.peak = current

    def decrease(self, amount: int) -> None:
        """Subtracts `amount` (bytes or blocks) from the counter."""
        self.current -= amount
        self.freed += amount

    def reset_peak(self) -> None:
        """Resets the peak to the current value."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """Resets the running sums to zero."""
        self.allocated = self.freed = 0

    def as_dict(self) -> dict[str, int]:
        """Returns the four numbers under PyTorch's names, in PyTorch's order."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class StatArray:
    """A counter for the whole device and one for each of the two pools.

    A pool is given by its index: 0 is the small pool, 1 the large one. `of_pool[index]` holds the two counters that a
    change in that pool affects.
    """

    __slots__ = ("all", "large_pool", "of_pool", "small_pool")

    def __init__(self) -> None:
        self.all, self.small_pool, self.large_pool = Stat(), Stat(), Stat()
        self.of_pool = ((self.all, self.small_pool), (self.all, self.large_pool))

    def increase(self, pool: int, amount: int) -> None:
        """Adds `amount` to the device's counter and to that of pool number `pool`."""
        for stat in self.of_pool[pool]:
            stat.increase(amount)

    def decrease(self, pool: int, amount: int) -> None:
        """Subtracts `amount` from the device's counter and from that of pool number `pool`."""
        for stat in self.of_pool[pool]:
            stat.decrease(amount)

    def change(self, pool: int, amount: int) -> None:
        """Applies a net change as one increase or one decrease; zero changes nothing."""
        if amount > 0:
            self.increase(pool, amount)
        elif amount < 0:
            self.decrease(pool, -amount)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Returns `{"all": …, "small_pool": …, "large_pool": …}`."""
        return {name: getattr(self, name).as_dict() for name in ("all", "small_pool", "large_pool")}


ARRAYS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
"""The stat arrays of a device, by PyTorch's names.

`allocation`/`allocated_bytes`: allocated blocks and their size after splitting (an unsplit block counts whole).
`requested_bytes`: the requested sizes. `active`: allocated, or freed but still in use on a different stream.
`segment`/`reserved_bytes`: memory from the device. `inactive_split`: free blocks that share their segment with others,
so that the segment cannot be returned to the device.
"""

OVERSIZE = ("oversize_allocations", "oversize_segments")
"""Counters of blocks and segments of at least `max_split_size`, for both pools together."""

SCALARS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
)
"""Plain counts since the last `reset_accumulated_memory_stats`."""


class Statistics:
    """Every counter of one device's allocator.

    The three `block_…` methods run for each tensor, so for speed they update the counters directly.
    """

    __slots__ = (*ARRAYS, *OVERSIZE, *SCALARS, "_active", "_allocated", "_both", "reserved_by_private_pools")

    allocation: StatArray
    segment: StatArray
    active: StatArray
    inactive_split: StatArray
    allocated_bytes: StatArray
    reserved_bytes: StatArray
    active_bytes: StatArray
    inactive_split_bytes: StatArray
    requested_bytes: StatArray
    oversize_allocations: Stat
    oversize_segments: Stat
    num_alloc_retries: int
    num_ooms: int
    num_sync_all_streams: int
    num_device_alloc: int
    num_device_free: int
    num_oom_rejections: int

    def __init__(self) -> None:
        for name in ARRAYS:
            setattr(self, name, StatArray())
        for name in OVERSIZE:
            setattr(self, name, Stat())
        for name in SCALARS:
            setattr(self, name, 0)
        self.reserved_by_private_pools: dict[tuple[int, int], StatArray] = {}
        # For each pool, the counters of the device and of the pool: of blocks, of their bytes, and of the requested
        # bytes; first for allocated blocks, then for active ones.
        self._allocated, self._active = [
            [(count.of_pool[pool], size.of_pool[pool], self.requested_bytes.of_pool[pool]) for pool in (0, 1)]
            for count, size in (
                (self.allocation, self.allocated_bytes),
                (self.active, self.active_bytes),
            )
        ]
        self._both = [
            ((*allocated[0], *active[0]), (*allocated[1], *active[1]))
            for allocated, active in zip(self._allocated, self._active, strict=True)
        ]

    def reserved(self, pool: BlockPool, amount: int) -> None:
        """Records that `amount` more bytes were reserved for a pool, or fewer if it is negative."""
        self.reserved_bytes.change(pool.index, amount)
        if pool.owner is not None:
            pool.owner.mallocs += 1 if amount > 0 else -1
            self.reserved_by_private_pools.setdefault(pool.id, StatArray()).change(pool.index, amount)

    def block_handed_out(self, pool: int, size: int, requested: int) -> None:
        """Records that a block of `size` bytes was allocated for a request of `requested` bytes."""
        blocks, sizes = self._both[pool]
        for stat in blocks:
            stat.allocated += 1
            current = stat.current = stat.current + 1
            if current > stat.peak:
                stat.peak = current
        for stat in sizes:
            stat.allocated += size
            current = stat.current = stat.current + size
            if current > stat.peak:
                stat.peak = current
        for stat in self._allocated[pool][2]:
            stat.allocated += requested
            current = stat.current = stat.current + requested
            if current > stat.peak:
                stat.peak = current

    def block_given_back(self, pool: int, size: int) -> None:
        """Records that a block was freed by its owner; it may stay active for a while."""
        blocks, sizes, _ = self._allocated[pool]
        for stat in blocks:
            stat.current -= 1
            stat.freed += 1
        for stat in sizes:
            stat.current -= size
            stat.freed += size

    def block_inactive(self, pool: int, size: int, requested: int) -> None:
        """Records that the free of a block completed, because no stream uses it any more."""
        blocks, sizes, requests = self._active[pool]
        for stat in blocks:
            stat.current -= 1
            stat.freed += 1
        for stat in sizes:
            stat.current -= size
            stat.freed += size
        for stat in requests:
            stat.current -= requested
            stat.freed += requested

    def reset_peak(self) -> None:
        """Resets all peaks, as `torch.cuda.reset_peak_memory_stats` does."""
        for stat in self._stats():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """Resets all running sums, as `torch.cuda.reset_accumulated_memory_stats` does."""
        for stat in self._stats():
            stat.reset_accumulated()
        for name in SCALARS:
            setattr(self, name, 0)

    def as_dict(self, max_split_size: int, torch_version: tuple[int, ...]) -> dict:
        """Returns the nested dictionary that `torch._C._cuda_memoryStats(device)` returns.

        `max_split_size` is in bytes, or -1 if blocks of any size may be split. Torch 2.11.0, 2.12.1 and 2.13.0 were
        compared: 2.12 added `num_oom_rejections`, 2.13 `reserved_bytes_by_private_pools`.
        """
        scalars = {name: getattr(self, name) for name in SCALARS}
        if torch_version < (2, 12):
            del scalars["num_oom_rejections"]
        result: dict = {}
        for name, value in scalars.items():
            result[name] = value
            if name == "num_ooms":
                result["max_split_size"] = max_split_size
        for name in ARRAYS:
            result[name] = getattr(self, name).as_dict()
            if name == "reserved_bytes" and torch_version >= (2, 13):
                pools = self.reserved_by_private_pools
                result["reserved_bytes_by_private_pools"] = {key: array.as_dict() for key, array in pools.items()}
        for name in OVERSIZE:
            result[name] = getattr(self, name).as_dict()
        return result

    def _stats(self):
        for name in ARRAYS:
            array = getattr(self, name)
            yield from (array.all, array.small_pool, array.large_pool)
        for name in OVERSIZE:
            yield getattr(self, name)
        for array in self.reserved_by_private_pools.values():
            yield from (array.all, array.small_pool, array.large_pool)
