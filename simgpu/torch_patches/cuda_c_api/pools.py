"""Bindings for private memory pools, and the base of torch.cuda.MemPool."""

import threading
import weakref

import torch

from simgpu.device import machine as machines
from simgpu.errors import NotModelledError
from simgpu.torch_patches.cuda_c_api.base import Bindings, only_device

POOLS = ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
"""Functions that torch.cuda.memory holds copies of."""


class Pools(Bindings):
    """Functions that torch.cuda.use_mem_pool calls."""

    def _cuda_beginAllocateCurrentThreadToPool(self, index, pool_id):
        """Serves only this thread's requests from the pool, and not those of backward, which autograd runs in its own
        thread.
        """
        only_device(index)
        thread = threading.get_ident()
        self.machine.allocator.pools.begin(
            pool_id, lambda stream: threading.get_ident() == thread and torch._C._current_graph_task_id() == -1
        )

    def _cuda_beginAllocateToPool(self, index, pool_id):
        only_device(index)
        self.machine.allocator.pools.begin(pool_id, lambda stream: True)

    def _cuda_beginAllocateCurrentStreamToPool(self, index, pool_id):
        only_device(index)
        chosen = self.machine.stream
        self.machine.allocator.pools.begin(pool_id, lambda stream: stream == chosen)

    def _cuda_endAllocateToPool(self, index, pool_id):
        only_device(index)
        self.machine.allocator.pools.end(pool_id)

    def _cuda_releasePool(self, index, pool_id):
        only_device(index)
        self.machine.allocator.pools.release(pool_id)


class MemPool:
    """Base of torch.cuda.MemPool, which is torch._C._MemPool on CUDA builds; the pool lives as long as the object."""

    def __init__(self, allocator=None, is_user_created=True, use_on_oom=False, no_split=False):
        if allocator is not None:
            raise NotModelledError("torch.cuda.MemPool with an allocator is not modelled by the simulated GPU")
        machine = machines.on()
        machine.initialize()
        self._pools = machine.allocator.pools
        self._id = self._pools.new_id(is_user_created)
        self._pools.make(self._id, no_split=no_split, use_on_oom=use_on_oom)
        weakref.finalize(self, _dropped, machine, self._id).atexit = False

    @property
    def id(self) -> tuple[int, int]:
        return self._id

    @property
    def device(self) -> int:
        return 0

    def use_count(self) -> int:
        return self._pools.users(self._id)


def _dropped(machine, pool_id) -> None:
    """Releases the pool when a MemPool ends (aten/src/ATen/cuda/MemPool.cpp, ~MemPool)."""
    if machine.active:
        machine.allocator.drop_pool(pool_id)
