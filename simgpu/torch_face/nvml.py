"""Replaces pynvml (package nvidia-ml-py), so that it reports the simulated device's memory as nvidia-smi shows it."""

import types
from functools import cache

from simgpu.errors import NotModelledError
from simgpu.machine import Machine
from simgpu.patches import Patches

HANDLE = "simulated GPU 0"


def patch(patches: Patches, machine: Machine) -> None:
    """Puts functions for `machine` into pynvml, if that is installed."""
    try:
        import pynvml
    except ImportError:
        return

    def handle(index=0):
        if index != 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return HANDLE

    def memory_info(handle, version=None):
        used = machine.used_memory
        return types.SimpleNamespace(total=machine.spec.total_memory, used=used, free=machine.spec.total_memory - used)

    replacements = {
        "nvmlInit": lambda: None,
        "nvmlInitWithFlags": lambda flags: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetName": lambda handle: machine.spec.name,
    }
    refusals = _refusals(pynvml)  # pyright: ignore[reportArgumentType]  (a module can be hashed)
    for name, function in (refusals | replacements).items():
        patches.apply(pynvml, name, function)


@cache
def _refusals(pynvml) -> dict:
    """Returns a refusing replacement for each function of pynvml."""
    return {name: _refuse(name) for name, one in vars(pynvml).items() if name.startswith("nvml") and callable(one)}


def _refuse(name):
    def refuse(*args, **kwargs):
        raise NotModelledError(f"pynvml.{name} is not modelled by the simulated GPU")

    return refuse
