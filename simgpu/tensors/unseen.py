"""Code that asks for memory of CUDA where no mode of the simulated GPU is on is told why, and not in PyTorch's words.

It comes to PyTorch's kernels for CUDA, which a build for the CPU has not: two of them are given this one instead.
"""

import torch

from simgpu.errors import NotModelledError
from simgpu.tensors import registry

FACTORIES = ("empty.memory_format", "empty_strided")


def refuse(*args, **kwargs):
    """The kernel."""
    raise NotModelledError(
        "the simulated GPU is not seen here. Either this thread was started before the GPU was on: start it inside, or "
        "use concurrent.futures.ThreadPoolExecutor. Or Python ran this code in the middle of an operator: a __del__, a "
        "callback of the garbage collection, a signal's handler"
    )


def register() -> None:
    """For `registry.hold`: while a simulated GPU is on."""
    absent = [one for one in FACTORIES if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{one}", "CUDA")]
    if absent:
        below = registry.library("CUDA")
        for name in absent:
            below.impl(name, refuse)
