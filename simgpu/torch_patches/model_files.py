"""Loads model files directly to "cuda": safetensors, which bypasses PyTorch to write, and transformers' threads."""

import contextlib
import importlib.util
import os
import sys
from functools import wraps

from simgpu.device.machine import current, remedy
from simgpu.dispatch.default_devices import means_gpu
from simgpu.errors import NoValueError
from simgpu.patches import Patches
from simgpu.storage import storage_map, values

_ONE_THREAD = "HF_DEACTIVATE_ASYNC_LOAD"  # transformers/core_model_loading.py


def patch(patches: Patches) -> None:
    """Makes safetensors.safe_open, under every name, read on the host what belongs on the simulated GPU."""
    if importlib.util.find_spec("safetensors") is None:
        return
    import safetensors.torch

    opened = safetensors.safe_open
    replacement = on_host_first(opened)
    for name in ("_to_ndarray", "_tobytes"):  # in newer and in older versions
        if hasattr(safetensors.torch, name):
            patches.apply(safetensors.torch, name, with_values(getattr(safetensors.torch, name)))
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("safe_open") is opened:
            patches.apply(module, "safe_open", replacement)


def on_host_first(opened):
    """Wraps safetensors.safe_open (`opened`), which writes to a tensor's address, where no memory exists."""

    @wraps(opened, updated=())
    def safe_open(filename, framework, device="cpu", **options):
        if current() is None or not means_gpu(device):
            return opened(filename, framework=framework, device=device, **options)
        return FileForGPU(opened(filename, framework=framework, device="cpu", **options), device)

    return safe_open


def with_values(read):
    """Wraps safetensors' function (`read`) that reads the bytes of a tensor to be saved at its address."""

    @wraps(read)
    def call(tensor, *args):
        if storage_map.of(tensor) is None:
            return read(tensor, *args)
        known = values.of(tensor)
        if known is None:
            raise NoValueError(
                f"safetensors writes values, and a simulated tensor of shape {tuple(tensor.shape)} has none: the "
                f"simulated GPU computes memory, not values. {remedy()}."
            )
        return read(known.clone(), *args)

    return call


class FileForGPU:
    """A safetensors file, opened on the host, whose tensors and slices (`held` is either) go to the simulated GPU."""

    def __init__(self, held, device):
        self._held, self._device = held, device

    def __enter__(self):
        self._held.__enter__()
        return self

    def __exit__(self, *exception):
        return self._held.__exit__(*exception)

    def __getattr__(self, name):
        return getattr(self._held, name)

    def __getitem__(self, index):
        return self._held[index].to(self._device)

    def get_tensor(self, name):
        return self._held.get_tensor(name).to(self._device)

    def get_tensors(self, *names):
        return {name: tensor.to(self._device) for name, tensor in self._held.get_tensors(*names).items()}

    def get_slice(self, name):
        return FileForGPU(self._held.get_slice(name), self._device)


@contextlib.contextmanager
def loaded_in_one_thread():
    """Makes transformers load models in the calling thread, inside the `with`.

    Modes belong to a thread, so other threads would not see the simulated GPU.
    """
    before = os.environ.get(_ONE_THREAD)
    os.environ.setdefault(_ONE_THREAD, "1")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_ONE_THREAD, None)
