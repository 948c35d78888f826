"""Bindings: the one device, whether it is initialised, and waiting for it."""

import torch

from simgpu.torch_face import build
from simgpu.torch_face.bindings.base import Bindings, only_device


class Device(Bindings):
    """torch.cuda's and torch.accelerator's functions about the device."""

    def _cuda_init(self):
        self.machine.initialize()

    def _cuda_isInBadFork(self):
        return self.machine.turns.forked

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
        """A kernel that waits; how long a cycle takes is not modelled."""

    def _cuda_ipc_collect(self):
        """Nothing is shared with other processes."""

    if hasattr(torch.cuda.memory, "_free_mutex"):  # torch 2.11

        def _cuda_lock_mutex(self):
            """Locks the allocator: no other thread frees in between here."""

        def _cuda_unlock_mutex(self):
            """See `_cuda_lock_mutex`."""

    def _set_cached_tensors_enabled(self, enabled):
        """torch._dynamo.reset() calls it; graphs of torch.compile keep no tensors here."""

    def _accelerator_getAccelerator(self):
        return torch.device("cuda")

    def _get_accelerator(self, check=None):
        """torch.distributed asks this one."""
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
