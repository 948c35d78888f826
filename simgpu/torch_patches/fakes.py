"""Prepares the device for PyTorch's fake CUDA tensors on the simulated GPU.

The first thing that torch 2.11 does for each fake tensor is to make a real one on the device. On the simulated GPU, as
on a real one, its block is allocated and freed.
"""

from contextlib import ExitStack
from functools import wraps

import torch
from torch._subclasses import fake_tensor

from simgpu.dispatch import stacks
from simgpu.patches import Patches

_DISPATCHED = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)


def patch(patches: Patches, modes: tuple) -> None:
    """Replaces init_gpu_context. `modes` are the simulated GPU's, the innermost last.

    They are disabled while operators on fake tensors run.
    """
    patches.apply(fake_tensor, "init_gpu_context", _seen(fake_tensor.init_gpu_context, modes))


def _seen(ready, modes: tuple):
    """Wraps init_gpu_context (`ready`), so that it runs with the modes on.

    Later versions than 2.11 cache it, and then a second call for a device does nothing.
    """
    cached, known = hasattr(ready, "cache_info"), set()

    @wraps(ready)
    def init_gpu_context(device):
        if device in known:
            return None
        with ExitStack() as leave:
            leave.enter_context(torch._C._EnableTorchFunction())  # pyright: ignore[reportAttributeAccessIssue]
            for key in _DISPATCHED:
                leave.callback(_exclude, key, torch._C._dispatch_tls_is_dispatch_key_excluded(key))
                _exclude(key, False)
            for mode in modes:
                if mode not in (*stacks.dispatchers(), *stacks.functions()):
                    leave.enter_context(mode)
            found = ready(device)
            if cached:
                known.add(device)
            return found

    return init_gpu_context


_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
