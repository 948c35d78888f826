"""Bindings for the allocator's counters, settings and blocks."""

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.errors import NotModelledError
from simgpu.storage import storage_map
from simgpu.torch_patches.cuda_c_api.base import Bindings, as_torch_error, is_others, only_device

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
