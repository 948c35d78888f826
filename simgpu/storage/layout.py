"""Checks the memory layout of tensors."""

import torch

_dense = torch.ops.aten.is_non_overlapping_and_dense.default


def is_dense(tensor) -> bool:
    """Returns whether the elements fill their memory without gaps or overlaps, in any order of the dims."""
    return tensor.is_contiguous() or _dense(tensor)
