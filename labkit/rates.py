"""What a GPU reaches, measured: bytes a second of its memory, operations a second of a product."""

import torch

from labkit.stopwatch import seconds

_SIDE = 4096  # of the square matrices that are multiplied
_REPEATS = 5


def memory_rate() -> float:
    """Bytes a second that the GPU in use reads and writes in a copy of 256 MiB, each byte counted twice."""
    source = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    to = torch.zeros_like(source)
    return 2 * source.nbytes / seconds(lambda: to.copy_(source), _REPEATS)


def product_rate(dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations a second that the GPU in use reaches in a product of two matrices of 4096 × 4096.

    A multiplication and an addition are two operations.
    """
    a, b = (torch.zeros(_SIDE, _SIDE, dtype=dtype, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / seconds(lambda: torch.mm(a, b, out=out), _REPEATS)
