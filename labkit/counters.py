"""Reads PyTorch's counter of requested bytes, for which ``torch.cuda`` has no function."""

from __future__ import annotations

import torch


def requested(peak: bool = False) -> int:
    """Returns the bytes that tensors and workspaces have requested, before the allocator rounds them up to blocks.

    >>> x = torch.zeros(1000, device="cuda")
    >>> requested(), torch.cuda.memory_allocated()
    (4000, 4096)

    The figure includes neither rounding nor the remainder that may stay with a large block, so it follows from shapes
    alone. With ``peak``, returns the maximum since ``torch.cuda.reset_peak_memory_stats()``.
    """
    return torch.cuda.memory_stats().get(f"requested_bytes.all.{'peak' if peak else 'current'}", 0)
