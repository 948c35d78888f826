"""Code that asks for memory of CUDA where no mode of the simulated GPU is on is told why, and not in PyTorch's words.

It comes to PyTorch's kernels for CUDA: two of them are this one instead. A build for the CPU has none; in one for CUDA
the own ones come back when the simulated GPU goes.
"""

import warnings

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
    below = registry.library("CUDA")

    def put_in():
        for name in FACTORIES:
            below.impl(name, refuse, allow_override=True)

    if not torch._C._is_torch_function_enabled():
        return put_in()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        torch.numel(_Called(put_in))  # pyright: ignore[reportArgumentType]


class _Called:
    """Calls `function` inside of a function of torch's, where what C++ warns of becomes Python's warning: torch 2.11
    warns of a kernel that takes another one's place, on standard error where nothing catches it."""

    def __init__(self, function) -> None:
        self.function = function

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return args[0].function()
