"""Private pools: free blocks that serve only requests for this pool (`torch.cuda.MemPool`, CUDA graphs).

While a pool is *active* (`PrivatePools.begin` … `end`), it serves the requests that its filter accepts. A pool counts
its users. Once the last one has released it, its segments may be returned to the device.

Source: `PrivatePool`, `graph_pools`, `graph_pools_freeable` and `captures_underway` in
`c10/cuda/CUDACachingAllocator.cpp`; compared with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable

from simgpu.allocator.blocks import LARGE, SMALL, BlockPool
from simgpu.allocator.event_log import DEFAULT_POOL

PoolId = tuple[int, int]


class PrivatePool:
    """A small and a large pool under the id `(0, n)`, or `(n, 0)` if a CUDA graph has made it.

    `users` is the number of users that have not released it, and `mallocs` its number of segments and mapped ranges.
    """

    __slots__ = ("id", "large", "mallocs", "small", "users")

    def __init__(self, pool_id: PoolId) -> None:
        self.id = pool_id
        self.users = 1
        self.mallocs = 0
        self.small, self.large = BlockPool(SMALL, self), BlockPool(LARGE, self)

    def free_bytes(self) -> int:
        """Returns the bytes in free blocks."""
        return sum(block.size for pool in (self.small, self.large) for block in pool)


class PrivatePools:
    """The private pools of one allocator.

    `active` holds pairs of an id and a filter, latest last. The filter takes a stream and says whether the pool serves
    the current request. `captures` holds those that belong to CUDA graphs being captured; during a capture the
    allocator waits for no stream and returns nothing to the device. `no_split` holds pools whose blocks are never
    split, and `on_oom` pools that serve requests that no other memory can serve.
    """

    def __init__(self) -> None:
        self.active: list[tuple[PoolId, Callable[[int], bool]]] = []
        self.captures: set[PoolId] = set()
        self.no_split: set[PoolId] = set()
        self.on_oom: list[PoolId] = []
        self._pools: dict[PoolId, PrivatePool] = {}
        self._freeable: dict[PoolId, PrivatePool] = {}
        self._numbers = {True: 0, False: 0}

    def __iter__(self):
        return iter(self._pools.values())

    def new_id(self, by_user: bool = True) -> PoolId:
        """Returns an unused id: `(0, n)` for users, `(n, 0)` for CUDA graphs."""
        self._numbers[by_user] += 1
        return (0, self._numbers[by_user]) if by_user else (self._numbers[by_user], 0)

    def make(self, pool_id: PoolId, *, no_split: bool = False, use_on_oom: bool = False) -> None:
        """Creates a user's pool (`torch.cuda.MemPool`), with the user counted."""
        self.take(pool_id)
        if no_split:
            self.no_split.add(pool_id)
        if use_on_oom:
            self.on_oom.append(pool_id)

    def take(self, pool_id: PoolId) -> None:
        """Adds a user, and creates the pool if it does not exist. Raises RuntimeError if all users have released it."""
        pool = self._pools.get(pool_id)
        if pool is None:
            self._pools[pool_id] = PrivatePool(pool_id)
        elif pool.users == 0:
            raise RuntimeError(f"the private pool {pool_id} was released by all of its users")
        else:
            pool.users += 1

    def release(self, pool_id: PoolId) -> None:
        """Removes a user. Raises RuntimeError if the pool does not exist."""
        pool = self._of(pool_id)
        pool.users -= 1
        if pool.users == 0:
            self._freeable[pool_id] = pool

    def users(self, pool_id: PoolId) -> int:
        """Returns the number of users. Raises RuntimeError if the pool does not exist."""
        return self._of(pool_id).users

    def begin(self, pool_id: PoolId, picks: Callable[[int], bool], capture: bool = False) -> None:
        """Serves the requests that `picks` accepts from the pool, until `end`; `capture` is for a CUDA graph.

        Raises RuntimeError, in PyTorch's words, if it is already active.
        """
        self.take(pool_id)
        if any(active == pool_id for active, _ in self.active):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.active.append((pool_id, picks))
        if capture:
            self.captures.add(pool_id)

    def end(self, pool_id: PoolId) -> None:
        """Ends what `begin` started. Raises RuntimeError, in PyTorch's words, if the pool is not active."""
        for position, (active, _) in enumerate(self.active):
            if active == pool_id:
                del self.active[position]
                self.captures.discard(pool_id)
                return
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    def chosen(self, stream: int) -> PrivatePool | None:
        """Returns the pool that serves a request for this stream now, or None."""
        for pool_id, picks in reversed(self.active):
            if picks(stream):
                return self._pools[pool_id]
        return None

    def overflow(self) -> list[PrivatePool]:
        """Returns the pools that may serve requests that no other memory can serve."""
        return [self._pools[pool_id] for pool_id in self.on_oom if pool_id in self._pools]

    def freeable(self, only: PoolId = DEFAULT_POOL) -> list[PrivatePool]:
        """Returns the pools that all users have released, or only the pool `only` if it is one of them."""
        return [pool for pool_id, pool in self._freeable.items() if only in (DEFAULT_POOL, pool_id)]

    def drop_if_empty(self, pool: PrivatePool) -> None:
        """Removes a released pool that has no memory any more."""
        if pool.mallocs == 0:
            del self._pools[pool.id]
            del self._freeable[pool.id]

    def free_bytes(self) -> int:
        """Returns the bytes in free blocks of all pools."""
        return sum(pool.free_bytes() for pool in self)

    def _of(self, pool_id: PoolId) -> PrivatePool:
        if pool_id not in self._pools:
            raise RuntimeError(f"there is no private pool {pool_id}")
        return self._pools[pool_id]
