"""Replaces pynvml (package nvidia-ml-py), so that it describes the simulated device and its memory.

The device is idle. What only a card knows (its temperature, power and clocks) is an NVMLError, "not supported", which
NVML itself raises of some cards, and which programs expect.
"""

import os
import types
from functools import cache

from simgpu.device.machine import Machine
from simgpu.errors import NotModelledError
from simgpu.patches import Patches
from simgpu.torch_patches.build import CUDA

DRIVER = "580.65.06"
"""The driver that CUDA 13.0 came with."""
HELPERS = ("nvmlErrorString", "nvmlExceptionClass", "nvmlFriendlyObjectToStruct", "nvmlStructToFriendlyObject")
"""Functions of pynvml that do not ask the driver for anything about a device."""


def patch(patches: Patches, machine: Machine) -> None:
    """Puts functions for `machine` into pynvml, if that is installed."""
    try:
        import pynvml
    except ImportError:
        return

    def gpus() -> int:
        """The GPUs of this machine; NVML does not ask for CUDA_VISIBLE_DEVICES."""
        return machine.gpus if machine.world is None else machine.world.local_ranks

    def handle(index=0):
        if not 0 <= index < gpus():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return f"simulated GPU {index}"

    def index_of(handle) -> int:
        return int(handle.rsplit(" ", 1)[1])

    def own(handle) -> int:
        """Bytes in use on this process's GPU; of the others nothing is known."""
        if index_of(handle) != machine.cuda.index:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return machine.used_memory

    def memory_info(handle, version=None):
        used, total = own(handle), machine.spec.total_memory
        reserved = {} if version is None else {"reserved": 0, "version": version}
        return types.SimpleNamespace(total=total, used=used, free=total - used, **reserved)

    def processes(handle):
        used = own(handle)
        one = types.SimpleNamespace(
            pid=os.getpid(), usedGpuMemory=used, gpuInstanceId=0xFFFFFFFF, computeInstanceId=0xFFFFFFFF
        )
        return [one] if used else []

    major, minor = machine.spec.compute_capability
    replacements = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: DRIVER,
        "nvmlSystemGetNVMLVersion": lambda: f"13.{DRIVER}",
        "nvmlDeviceGetCount": gpus,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": index_of,
        "nvmlDeviceGetMinorNumber": index_of,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-00000000-0000-0000-0000-0000000000{index_of(handle):02}",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (major, minor),
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetName": lambda handle: machine.spec.name,
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=0, memory=0),
    }
    for name in ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        replacements[name] = lambda: int(float(CUDA) * 1000)
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for version in ("", "_v2", "_v3"):
            replacements[name + version] = processes if "Compute" in name else lambda handle: []
    replacements = {name: function for name, function in replacements.items() if hasattr(pynvml, name)}
    refusals = _refusals(pynvml)  # pyright: ignore[reportArgumentType]  (a module can be hashed)
    for name, function in (refusals | replacements).items():
        patches.apply(pynvml, name, function)


@cache
def _refusals(pynvml) -> dict:
    """Returns a refusing replacement for each function of pynvml that asks the driver."""

    class NotModelled(pynvml.NVMLError_NotSupported, NotModelledError):
        """NVML's own error, with a text that names the function."""

        def __str__(self) -> str:
            return str(self.args[0])

    def refuse(name):
        def refuse(*args, **kwargs):
            error = NotModelled()
            error.args = (f"pynvml.{name} is not modelled by the simulated GPU",)
            raise error

        return refuse

    return {
        name: refuse(name)
        for name, one in vars(pynvml).items()
        if name.startswith("nvml") and isinstance(one, types.FunctionType) and name not in HELPERS
    }
