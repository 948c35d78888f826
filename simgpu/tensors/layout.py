"""How tensors lie in memory."""

import torch

_dense = torch.ops.aten.is_non_overlapping_and_dense.default


def is_dense(tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of the dims."""
    return tensor.is_contiguous() or _dense(tensor)


def check_bounds(tensor, size, stride, storage_offset=None) -> None:
    """RuntimeError if as_strided with these arguments would reach beyond the tensor's storage: a meta tensor's is not
    looked at by PyTorch (aten/src/ATen/native/Resize.h, checkInBoundsForStorage)."""
    if 0 in size:
        return
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    reach = offset + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=False))
    wanted, there = reach * tensor.element_size(), tensor.untyped_storage().nbytes()
    if wanted > there:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and "
            f"itemsize {tensor.element_size()} requiring a storage size of {wanted} are out of bounds for storage of "
            f"size {there}"
        )
