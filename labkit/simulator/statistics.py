"""The counters of the caching allocator: what `torch.cuda.memory_stats()` reports.

Each quantity is a *stat array*: one counter for the whole device (`all`) and one per pool
(`small_pool`, `large_pool`). Each counter has four numbers, all in bytes or all in blocks:

- `current`: now;
- `peak`: the largest `current` since the last `reset_peak_memory_stats`;
- `allocated`, `freed`: running sums of the increases and of the decreases.

Source: `c10/core/CachingDeviceAllocator.h` (`Stat`, `StatArray`, `DeviceStats`) of PyTorch.
"""

from __future__ import annotations


class Stat:
    """One counter: `current`, `peak`, and the running sums `allocated` and `freed`."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        """Add `amount` (bytes or blocks) to the counter."""
        self.allocated += amount
        current = self.current = self.current + amount
        if current > self.peak:
            self.peak = current

    def decrease(self, amount: int) -> None:
        """Take `amount` (bytes or blocks) from the counter."""
        self.current -= amount
        self.freed += amount

    def change(self, amount: int) -> None:
        """Apply a net change as one increase or one decrease; zero changes nothing."""
        if amount > 0:
            self.increase(amount)
        elif amount < 0:
            self.decrease(-amount)

    def reset_peak(self) -> None:
        """The peak starts again from the current value."""
        self.peak = self.current

    def reset_accumulated(self) -> None:
        """The running sums start again from zero."""
        self.allocated = self.freed = 0

    def as_dict(self) -> dict[str, int]:
        """The four numbers under PyTorch's names, in PyTorch's order."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class StatArray:
    """A counter for the whole device and one for each of the two pools.

    A pool's share is reached by its index: 0 is the small pool, 1 the large one.
    """

    __slots__ = ("all", "large_pool", "pools", "small_pool")

    def __init__(self) -> None:
        self.all, self.small_pool, self.large_pool = Stat(), Stat(), Stat()
        self.pools = (self.small_pool, self.large_pool)

    def increase(self, pool: int, amount: int) -> None:
        """Add `amount` to the device's counter and to that of pool number `pool`."""
        self.all.increase(amount)
        self.pools[pool].increase(amount)

    def decrease(self, pool: int, amount: int) -> None:
        """Take `amount` from the device's counter and from that of pool number `pool`."""
        self.all.decrease(amount)
        self.pools[pool].decrease(amount)

    def change(self, pool: int, amount: int) -> None:
        """Apply a net change as one increase or one decrease."""
        self.all.change(amount)
        self.pools[pool].change(amount)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """`{"all": …, "small_pool": …, "large_pool": …}`."""
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

`allocation`/`allocated_bytes`: blocks handed out and their size after splitting (an unsplit block counts
whole). `requested_bytes`: what was asked for. `active`: handed out, or freed but still in use on another
stream. `segment`/`reserved_bytes`: memory taken from the device. `inactive_split`: free blocks that share
their segment with others, so that the segment cannot be given back.
"""

OVERSIZE = ("oversize_allocations", "oversize_segments")
"""Counters of blocks and segments of at least `max_split_size`; they are not split by pool."""

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
    """Every counter of one device's allocator."""

    __slots__ = (*ARRAYS, *OVERSIZE, *SCALARS)

    def __init__(self) -> None:
        for name in ARRAYS:
            setattr(self, name, StatArray())
        for name in OVERSIZE:
            setattr(self, name, Stat())
        for name in SCALARS:
            setattr(self, name, 0)

    def block_handed_out(self, pool: int, size: int, requested: int) -> None:
        """A block of `size` bytes was handed out for a request of `requested` bytes."""
        self.allocation.increase(pool, 1)
        self.allocated_bytes.increase(pool, size)
        self.active.increase(pool, 1)
        self.active_bytes.increase(pool, size)
        self.requested_bytes.increase(pool, requested)

    def block_given_back(self, pool: int, size: int) -> None:
        """A block was freed by its owner; it may stay active for a while."""
        self.allocation.decrease(pool, 1)
        self.allocated_bytes.decrease(pool, size)

    def block_inactive(self, pool: int, size: int, requested: int) -> None:
        """The free of a block completed: no stream uses it any more."""
        self.active.decrease(pool, 1)
        self.active_bytes.decrease(pool, size)
        self.requested_bytes.decrease(pool, requested)

    def reset_peak(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats`."""
        for stat in self._stats():
            stat.reset_peak()

    def reset_accumulated(self) -> None:
        """As `torch.cuda.reset_accumulated_memory_stats`."""
        for stat in self._stats():
            stat.reset_accumulated()
        for name in SCALARS:
            setattr(self, name, 0)

    def as_dict(self, max_split_size: int, torch_version: tuple[int, ...]) -> dict:
        """The nested dictionary that `torch._C._cuda_memoryStats(device)` returns.

        `max_split_size` is in bytes, -1 when blocks of any size may be split. Up to torch 2.11 there is no
        `num_oom_rejections` (FACTS of the oracle: 2.11.0 and 2.13.0 compared).
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
            if name == "reserved_bytes":
                result["reserved_bytes_by_private_pools"] = {}
        for name in OVERSIZE:
            result[name] = getattr(self, name).as_dict()
        return result

    def _stats(self):
        for name in ARRAYS:
            array = getattr(self, name)
            yield from (array.all, array.small_pool, array.large_pool)
        for name in OVERSIZE:
            yield getattr(self, name)
