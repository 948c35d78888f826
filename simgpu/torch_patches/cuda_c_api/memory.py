"""Bindings for the allocator: its counters, settings and blocks, private pools, history and snapshots."""

import threading
import weakref

import torch

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.event_log import ACTIONS
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.device import machine as machines
from simgpu.errors import NotModelledError
from simgpu.storage import storage_map
from simgpu.torch_patches.cuda_c_api.base import Bindings, as_torch_error, is_others, only_device

# Bindings for the allocator's counters, settings and blocks.

NOT_OF_ACCELERATORS = ("num_oom_rejections", "reserved_bytes_by_private_pools")
"""Counters that torch.accelerator.memory_stats() omits (torch 2.13)."""


class Memory(Bindings):
    """Functions of torch.cuda and torch.accelerator about memory."""

    def allocator(self):
        """Returns the allocator, after freeing the blocks of all collected tensors."""
        storage_map.free_lost()
        return self.machine.allocator

    def allocator_of(self, index):
        """Returns the allocator of GPU `index`; for another rank's GPU, an unused one."""
        if is_others(self.machine, index):
            return CachingAllocator(self.machine.device, torch_version=self.machine.torch_version)
        only_device(index)
        return self.allocator()

    def _cuda_memoryStats(self, index):
        return self.allocator_of(index).stats()

    def _cuda_resetPeakMemoryStats(self, index):
        self.allocator_of(index).reset_peak_stats()

    def _cuda_resetAccumulatedMemoryStats(self, index):
        self.allocator_of(index).reset_accumulated_stats()

    def _cuda_setMemoryFraction(self, fraction, index):
        only_device(index)
        self.allocator().set_memory_fraction(fraction)

    def _cuda_getMemoryFraction(self, index):
        only_device(index)
        return self.allocator().memory_fraction

    def _cuda_cudaCachingAllocator_raw_alloc(self, nbytes, stream):
        try:
            return self.machine.raw_alloc(nbytes, stream)
        except OutOfMemory as error:
            raise as_torch_error(error) from None

    def _cuda_cudaCachingAllocator_enable(self, value):
        if not value:
            raise NotModelledError(
                "torch.cuda.caching_allocator_enable(False) switches PyTorch's caching allocator off, and the "
                "simulated GPU models nothing else"
            )

    _cuda_getAllocator = allocator

    def _cuda_changeCurrentAllocator(self, allocator):
        raise RuntimeError("Can't swap an already initialized allocator")

    def _accelerator_setAllocatorSettings(self, text):
        self.allocator().set_settings(text)

    def _accelerator_getAllocatorSettings(self):
        return self.allocator().settings.text

    def _accelerator_getDeviceStats(self, index):
        stats = self.allocator_of(index).stats()
        return {name: value for name, value in stats.items() if name not in NOT_OF_ACCELERATORS}

    def _accelerator_resetPeakStats(self, index):
        self._cuda_resetPeakMemoryStats(index)

    def _accelerator_resetAccumulatedStats(self, index):
        self._cuda_resetAccumulatedMemoryStats(index)

    def _accelerator_getMemoryInfo(self, index):
        only_device(index)
        self.machine.touch()
        return self.machine.device.mem_get_info()


# Bindings for private memory pools, and the base of torch.cuda.MemPool.

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


# Bindings for the allocator's history, its snapshots, and out-of-memory observers.

STACKS = ("python", "all")
SINCE_2_14 = ", arg8: bool, arg9: bool"  # record_pinned_host_memory, record_cuda


class History(Bindings):
    """Functions behind torch.cuda.memory._record_memory_history and _snapshot."""

    def _cuda_record_memory_history(
        self,
        enabled,
        context,
        stacks,
        max_entries,
        clear_history,
        compile_context=False,
        global_record_annotations=False,
        skip_actions=(),
        *since_2_14,
    ):
        """Checks its arguments as torch/csrc/cuda/memory_snapshot.cpp does. Stacks are Python's, whatever `stacks`
        says.
        """
        newer = self.machine.torch_version >= (2, 14)
        _check_types(enabled, context, stacks, max_entries, skip_actions, since_2_14, newer)
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in (None, "state", "alloc", "all"):
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in STACKS:
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        for action in skip_actions:
            if action not in ACTIONS:
                raise RuntimeError(f"Unknown TraceEntry action: {action}")
        self.machine.allocator.read_settings()
        self.machine.allocator.record_history(
            enabled if _of_the_gpu(*since_2_14) else None,
            context=context,
            max_entries=max_entries,
            clear_history=clear_history,
            skip_actions=skip_actions,
        )

    def _cuda_record_memory_history_legacy(
        self,
        enabled,
        record_context=True,
        trace_alloc_max_entries=1,
        trace_alloc_record_context=False,
        record_context_cpp=False,
        clear_history=False,
        compile_context=False,
        global_record_annotations=False,
        skip_actions=(),
        *since_2_14,
    ):
        """Implements _record_memory_history(True) or (False): records frames of living blocks, and of events if
        requested.
        """
        self.machine.allocator.record_history(
            "all" if enabled and _of_the_gpu(*since_2_14) else None,
            context=("alloc" if trace_alloc_record_context else "state") if record_context else None,
            max_entries=trace_alloc_max_entries,
            clear_history=clear_history,
            skip_actions=skip_actions,
        )

    def _cuda_memorySnapshot(self, selection=None):
        """Returns a snapshot.

        `selection` is None for everything, or (the two numbers of a pool's id, whether events are included); (0, 0) is
        all pools.
        """
        self.machine.allocator.read_settings()
        if selection is None:
            return self.machine.allocator.snapshot()
        *pool, with_events = selection if len(selection) == 3 else (*selection, True)
        return self.machine.allocator.snapshot(tuple(pool), with_events)

    def _cuda_attach_out_of_memory_observer(self, observer):
        """Registers `observer(device, bytes requested from the device, bytes allowed, bytes free)`, called before the
        error.
        """
        self.machine.allocator.read_settings()
        self.machine.allocator.observers.append(self.machine.allocator_lock.outside(observer))


def _of_the_gpu(record_pinned_host_memory: bool = False, record_cuda: bool = True) -> bool:
    """Returns whether the GPU's allocator is recorded; torch 2.14 has these two arguments.

    Raises NotModelledError if the allocator of pinned memory is to be recorded.
    """
    if record_pinned_host_memory:
        raise NotModelledError(
            "torch.cuda.memory._record_memory_history(record_pinned_host_memory=True) is not modelled: the simulated "
            "GPU does not count pinned memory of the host. Record the GPU's memory alone."
        )
    return record_cuda


def _check_types(enabled, context, stacks, max_entries, skip_actions, since_2_14: tuple, newer: bool) -> None:
    right = (
        all(text is None or isinstance(text, str) for text in (enabled, context))
        and isinstance(stacks, str)
        and isinstance(max_entries, int)
        and max_entries >= 0
        and not isinstance(skip_actions, str)
        and all(isinstance(action, str) for action in skip_actions)
        and len(since_2_14) in (0, 2 * newer)
    )
    if not right:
        raise TypeError(
            "_cuda_record_memory_history(): incompatible function arguments. The following argument types are "
            "supported:\n"
            "    1. (arg0: str | None, arg1: str | None, arg2: str, arg3: typing.SupportsInt | typing.SupportsIndex, "
            f"arg4: bool, arg5: bool, arg6: bool, arg7: collections.abc.Sequence[str]{SINCE_2_14 * newer}) -> None"
        )
