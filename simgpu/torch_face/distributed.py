"""torch.distributed while a simulated GPU is on: NCCL is refused; gloo on CPU tensors is PyTorch's own.

Collectives that are given simulated tensors are refused by the dispatch mode (`modes/dispatch_mode.py`).
"""

import inspect
from functools import wraps

import torch

from simgpu.errors import NotModelledError
from simgpu.patches import Patches

INSTEAD = (
    "the simulated GPU is one GPU, without others to talk to. Run one rank without torch.distributed, or use the "
    'backend "gloo" on CPU tensors.'
)


def patch(patches: Patches) -> None:
    """Puts it into torch."""
    if not torch.distributed.is_available():
        return
    owners = (torch.distributed, torch.distributed.distributed_c10d)
    for name in ("init_process_group", "new_group"):
        replacement = without_nccl(getattr(torch.distributed, name))
        for owner in owners:
            patches.apply(owner, name, replacement)


def without_nccl(make):
    """A function that makes a process group (`make` is PyTorch's own): NotModelledError if it is to be NCCL's."""
    signature = inspect.signature(make)

    @wraps(make)
    def checked(*args, **kwargs):
        backend = signature.bind_partial(*args, **kwargs).arguments.get("backend")
        if backend is not None and "nccl" in str(backend).lower():
            raise NotModelledError(f"torch.distributed.{make.__name__}({str(backend)!r}) is not modelled: {INSTEAD}")
        return make(*args, **kwargs)

    return checked
