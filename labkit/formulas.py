"""The allocator's rules and the sizes of tensors by plain arithmetic, without making a tensor or reading a counter.

Every size is in bytes. Values that are not counts are refused. If a rule depends on the GPU or the version of torch,
its docstring says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from math import ceil, prod

import torch

from labkit.units import MiB, whole_bytes

__all__ = ["block", "column_sum_scratch", "cublas_workspace", "of_counts", "parameters", "segment", "tensor"]

MIN_BLOCK_SIZE = 512  # kMinBlockSize, c10/core/AllocatorConfig.h
SMALL_SIZE = MiB  # kSmallSize: requests up to this size are served from the small pool
SMALL_BUFFER = 2 * MiB  # kSmallBuffer; kRoundLarge has the same value
LARGE_BUFFER = 20 * MiB  # kLargeBuffer, since torch 2.11 the option large_segment_size_mb
MIN_LARGE_ALLOC = 10 * MiB  # kMinLargeAlloc: from this size on a request gets a segment of its own size


def of_counts(formula: Callable) -> Callable:
    """Wraps a formula so that it refuses arguments annotated ``int`` that are not counts (``TypeError``,
    ``ValueError``).
    """
    signature = inspect.signature(formula)
    counts = [name for name, parameter in signature.parameters.items() if parameter.annotation == "int"]

    @wraps(formula)
    def checked(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        for name in counts:
            for value in given[name] if isinstance(given.get(name), tuple) else [given.get(name, 0)]:
                if (isinstance(value, float) and value != value) or whole_bytes(value) < 0:
                    raise ValueError(f"{formula.__name__}: {name} is a whole number of 0 or more, not {value!r}")
        return formula(*args, **kwargs)

    return checked


def block(nbytes: int) -> int:
    """Returns the block size for a request of ``nbytes``, rounded up to a multiple of 512 B (0 for 0).

    It holds for the allocator's default settings (no ``roundup_power2_divisions``). It excludes the remainder of at
    most 1 MiB that may stay with a large block. Raises ``ValueError`` for a negative size.
    """
    if whole_bytes(nbytes) < 0:
        raise ValueError(f"a request has a size of 0 bytes or more, not {nbytes}")
    return -(-whole_bytes(nbytes) // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE


def segment(nbytes: int) -> int:
    """Returns the size of the segment that the allocator requests from CUDA when no free block can serve ``nbytes``.

    It is 2 MiB in the small pool (requests up to 1 MiB), 20 MiB for requests below 10 MiB, and otherwise the request
    rounded up to a multiple of 2 MiB.
    """
    size = block(nbytes)
    if size == 0:
        return 0
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-size // SMALL_BUFFER) * SMALL_BUFFER


@of_counts
def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Returns the block size of a dense tensor of this shape; ``tensor()`` is a scalar, 512 B."""
    return block(prod(shape) * dtype.itemsize)


def parameters(model: torch.nn.Module) -> int:
    """Returns the bytes of the blocks of all parameters, counting tied ones once. Their gradients allocate the same."""
    return sum(block(p.numel() * p.element_size()) for p in model.parameters())


# Major compute capabilities whose default cuBLAS workspace is 32 MiB, by the first torch version with that rule
# (aten/src/ATen/cuda/CublasHandlePool.cpp; traced in 2.11 to 2.14). On all others it is 8.125 MiB.
_LARGE_WORKSPACE = {(2, 11): {9}, (2, 12): {9, 10, 12}, (2, 14): {9, 10, 11, 12}}


def cublas_workspace(capability: tuple[int, int], torch_version: str = torch.__version__) -> int:
    """Returns the bytes of the cuBLAS workspace that each thread's first matmul allocates and keeps.

    It is 32 MiB on Hopper (9.x), and since torch 2.12 on Blackwell (10.x, 12.x). Elsewhere it is 8.125 MiB, that is 2 ×
    4096 KiB + 8 × 16 KiB. ``CUBLAS_WORKSPACE_CONFIG`` overrides it. Forward and backward run in two threads, so
    training allocates it twice. Raises ``ValueError`` outside torch 2.11 to 2.14, because later versions free it after
    each matmul.
    """
    version = tuple(int(part) for part in torch_version.split(".")[:2])
    if not (2, 11) <= version <= (2, 14):
        raise ValueError(f"the rule is known for torch 2.11 to 2.14; {torch_version} was given")
    majors = _LARGE_WORKSPACE[max(known for known in _LARGE_WORKSPACE if known <= version)]
    return 32 * MiB if capability[0] in majors else 2 * 4096 * 1024 + 8 * 16 * 1024


@of_counts
def column_sum_scratch(
    rows: int, columns: int, multiprocessors: int, threads: int = 2048, expanded: bool = False
) -> tuple[int, int]:
    """Returns ``(staging buffer, semaphores)`` in bytes, which a sum of a float32 ``[rows, columns]`` over its rows
    allocates.

    This sum is the gradient of a Linear's bias. ``multiprocessors`` and ``threads`` (per multiprocessor) are the GPU's.
    ``expanded`` says that the matrix is one element expanded (all strides 0), as is the gradient of ``y.sum()``.
    Returns ``(0, 0)`` if one thread block can finish a column. Both are freed once the kernel is launched. The rule is
    ``setReduceConfig`` in aten/src/ATen/native/cuda/Reduce.cuh, for a contiguous matrix below 2**31 bytes with more
    than one column.
    """
    vector = 1 if expanded else next(v for v in (4, 2, 1) if columns % v == 0)
    limit = 512 // vector
    wide, high = (min(_power_of_two(n), limit) for n in (columns // vector, rows))
    width = min(wide, 32)
    height = min(high, limit // width)
    width = min(wide, limit // height)
    per_thread = rows
    across = rows >= min(16 * height, 256)  # the threads of one block share a column
    if across:
        per_thread = ceil(rows / height)
    grid = ceil(ceil(columns / vector) / (width if across else width * height))
    at_once = multiprocessors * (threads // (width * height))
    if not across or per_thread < 256 or grid > at_once:
        return 0, 0
    blocks = max(min(ceil(at_once / grid), ceil(per_thread / 16)), ceil(per_thread / 256))
    if blocks == 1:
        return 0, 0
    return 4 * columns * blocks * width * vector, 4 * grid


def _power_of_two(n: int) -> int:
    """Returns the largest power of two that is not above ``n`` (1 for 0)."""
    return 1 << (max(n, 1).bit_length() - 1)
