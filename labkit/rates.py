"""Measures the rates that a GPU reaches: bytes per second of its memory, operations per second of a matmul."""

import torch

from labkit.stopwatch import seconds

_SIDE = 4096  # side of the square matrices that are multiplied
_REPEATS = 5


def memory_rate() -> float:
    """Returns the bytes per second that the GPU in use reads and writes in a copy of 256 MiB.

    Each byte counts twice, because it is read and written.
    """
    source = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    to = torch.zeros_like(source)
    return 2 * source.nbytes / seconds(lambda: to.copy_(source), _REPEATS)


def product_rate(dtype: torch.dtype = torch.float32) -> float:
    """Returns the floating-point operations per second that the GPU in use reaches in a matmul of 4096 × 4096 matrices.

    A multiplication and an addition count as two operations.
    """
    a, b = (torch.zeros(_SIDE, _SIDE, dtype=dtype, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / seconds(lambda: torch.mm(a, b, out=out), _REPEATS)
