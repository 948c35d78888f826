"""Bindings for the device: its index, whether it is initialised, and waiting for it."""

from simgpu.torch_patches import build
from simgpu.torch_patches.cuda_c_api.base import Bindings, only_device


class Device(Bindings):
    """Functions of torch.cuda and torch.accelerator about the device."""

    def _cuda_setDevice(self, index):
        only_device(index)
        self.machine.initialize()

    def _cuda_exchangeDevice(self, index):
        only_device(index)
        self.machine.initialize()
        return self.machine.index if index >= 0 else -1

    _cuda_maybeExchangeDevice = _accelerator_exchangeDevice = _accelerator_maybeExchangeDevice = _cuda_exchangeDevice
    _accelerator_setDeviceIndex = _cuda_setDevice

    def _cuda_hasPrimaryContext(self, index):
        only_device(index)
        return self.machine.has_context

    def _cuda_getCompiledVersion(self):
        major, minor = map(int, build.CUDA.split("."))
        return 1000 * major + 10 * minor

    def _accelerator_getDeviceIndex(self):
        self.machine.initialize()
        return self.machine.index

    def _accelerator_synchronizeDevice(self, index):
        only_device(index)
        self.machine.synchronize()

    def _accelerator_getDeviceCapability(self, index):
        raise RuntimeError("Backend doesn't support getting device capabilities.")
