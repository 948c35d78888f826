"""Checks the memory layout of tensors, and that views do not extend beyond their storage."""

import torch

from simgpu.storage import storage_map

_as_strided = torch.ops.aten.as_strided.default
_dense = torch.ops.aten.is_non_overlapping_and_dense.default


def is_dense(tensor) -> bool:
    """Returns whether the elements fill their memory without gaps or overlaps, in any order of the dims."""
    return tensor.is_contiguous() or _dense(tensor)


def check_bounds(tensor, *args, **kwargs) -> None:
    """Raises PyTorch's RuntimeError if as_strided's view of a simulated tensor extends beyond its storage.

    (aten/src/ATen/native/Resize.h, checkInBoundsForStorage) PyTorch does not check this for meta tensors.
    """
    if storage_map.of(tensor) is None:
        return
    view = _as_strided(tensor, *args, **kwargs)
    if view.numel() == 0:
        return
    reach = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    needed = (view.storage_offset() + reach + 1) * view.element_size()
    nbytes = view.untyped_storage().nbytes()
    if needed > nbytes:
        raise RuntimeError(
            f"setStorage: sizes {list(view.shape)}, strides {list(view.stride())}, storage offset "
            f"{view.storage_offset()}, and itemsize {view.element_size()} requiring a storage size of {needed} are out "
            f"of bounds for storage of size {nbytes}"
        )
