"""What DistributedDataParallel asks of PyTorch's build, answered for the simulated GPU."""

from functools import wraps

import torch

from simgpu.patches import Patches

CUDA = "13.0"
"""The CUDA of PyTorch 2.13's wheel on PyPI (torch.version.cuda there)."""


def patch(patches: Patches) -> None:
    """Puts it into torch."""
    kind = torch.nn.parallel.DistributedDataParallel
    patches.apply(kind, "_check_comm_hook", _of_a_cuda_build(kind._check_comm_hook))


def _of_a_cuda_build(check):
    """_check_comm_hook (`check` is PyTorch's own): bf16_compress_hook is for builds with CUDA 11 or later."""

    @wraps(check)
    def _check_comm_hook(self, hook):
        before = torch.version.cuda
        torch.version.cuda = before or CUDA
        try:
            return check(self, hook)
        finally:
            torch.version.cuda = before

    return _check_comm_hook
