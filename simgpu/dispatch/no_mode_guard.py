"""Replaces CUDA's `empty` kernels, so that CUDA memory requested outside the simulated GPU's modes raises a clear
error.

Such a request reaches PyTorch's CUDA kernels, of which two are replaced. A CPU build has none, and in a CUDA build the
original ones are restored when the simulated GPU goes off.
"""

import warnings

import torch

from simgpu.errors import NotModelledError
from simgpu.ops import dispatcher

FACTORIES = ("empty.memory_format", "empty_strided")


def refuse(*args, **kwargs):
    """Raises the error; it is the replacing kernel."""
    raise NotModelledError(
        "the simulated GPU is not seen here. Either this thread was started before the GPU was on: start it inside, or "
        "use concurrent.futures.ThreadPoolExecutor. Or Python ran this code in the middle of an operator: a __del__, a "
        "callback of the garbage collection, a signal's handler"
    )


def register() -> None:
    """Registers the kernels through `dispatcher.hold`, while a simulated GPU is on."""
    below = dispatcher.library("CUDA")

    def put_in():
        for name in FACTORIES:
            below.impl(name, refuse, allow_override=True)

    if not torch._C._is_torch_function_enabled():
        return put_in()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        torch.numel(_Called(put_in))  # pyright: ignore[reportArgumentType]


class _Called:
    """Calls `function` inside a torch function, where C++ warnings become Python warnings.

    torch 2.11 warns about a kernel that replaces a previous one, on stderr if nothing catches it.
    """

    def __init__(self, function) -> None:
        self.function = function

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return args[0].function()
