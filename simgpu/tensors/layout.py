"""How tensors lie in memory."""

import torch

_dense = torch.ops.aten.is_non_overlapping_and_dense.default


def is_dense(tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of the dims."""
    return tensor.is_contiguous() or _dense(tensor)
