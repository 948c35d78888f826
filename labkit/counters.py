"""PyTorch's counter of requested bytes, which has no function of its own in ``torch.cuda``."""

from __future__ import annotations

import torch


def requested(peak: bool = False) -> int:
    """Bytes that tensors and workspaces have asked for, before the allocator rounds a request up to a block.

    >>> x = torch.zeros(1000, device="cuda")
    >>> requested(), torch.cuda.memory_allocated()
    (4000, 4096)

    Neither rounding nor the remainder that may stay with a large block is in it, so it follows from shapes alone.
    With ``peak`` the most since ``torch.cuda.reset_peak_memory_stats()``.
    """
    return torch.cuda.memory_stats().get(f"requested_bytes.all.{'peak' if peak else 'current'}", 0)
