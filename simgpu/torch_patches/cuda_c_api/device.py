"""Bindings for the device: its index, whether it is initialised, and waiting for it."""

import torch

from simgpu.torch_patches import build
from simgpu.torch_patches.cuda_c_api.base import Bindings, only_device


class Device(Bindings):
    """Functions of torch.cuda and torch.accelerator about the device."""

    def _cuda_init(self):
        self.machine.initialize()

    def _cuda_isInBadFork(self):
        return self.machine.allocator_lock.forked

    def _cuda_getDeviceCount(self):
        return self.machine.count

    def _cuda_getDevice(self):
        return self.machine.index

    def _cuda_setDevice(self, index):
        only_device(index)
        self.machine.initialize()

    def _cuda_exchangeDevice(self, index):
        only_device(index)
        self.machine.initialize()
        return self.machine.index if index >= 0 else -1

    def _cuda_maybeExchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _cuda_hasPrimaryContext(self, index):
        only_device(index)
        return self.machine.has_context

    def _cuda_canDeviceAccessPeer(self, device, peer):
        return False

    def _cuda_getCompiledVersion(self):
        major, minor = map(int, build.CUDA.split("."))
        return 1000 * major + 10 * minor

    def _cuda_getArchFlags(self):
        return " ".join(f"sm_{architecture}" for architecture in build.ARCHITECTURES)

    def _cuda_synchronize(self):
        self.machine.synchronize()

    def _cuda_sleep(self, cycles):
        """Does nothing: CUDA runs a kernel that waits, but the length of a cycle is not modelled."""

    def _cuda_ipc_collect(self):
        """Does nothing, because no memory is shared with other processes."""

    if hasattr(torch.cuda.memory, "_free_mutex"):  # torch 2.11

        def _cuda_lock_mutex(self):
            """Does nothing: CUDA locks the allocator, but here no other thread frees in between."""

        def _cuda_unlock_mutex(self):
            """Does nothing, see `_cuda_lock_mutex`."""

    def _set_cached_tensors_enabled(self, enabled):
        """Does nothing: torch._dynamo.reset() calls it, but graphs of torch.compile keep no tensors here."""

    def _accelerator_getAccelerator(self):
        return torch.device("cuda")

    def _get_accelerator(self, check=None):
        """Returns the accelerator for torch.distributed."""
        return torch.device("cuda")

    def _accelerator_getDeviceIndex(self):
        self.machine.initialize()
        return self.machine.index

    def _accelerator_setDeviceIndex(self, index):
        self._cuda_setDevice(index)

    def _accelerator_exchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _accelerator_maybeExchangeDevice(self, index):
        return self._cuda_exchangeDevice(index)

    def _accelerator_synchronizeDevice(self, index):
        only_device(index)
        self.machine.synchronize()

    def _accelerator_getDeviceCapability(self, index):
        raise RuntimeError("Backend doesn't support getting device capabilities.")
