"""Views that say themselves where they lie: they may not reach beyond their storage."""

import torch

from simgpu.tensors import residence

_as_strided = torch.ops.aten.as_strided.default


def check(tensor, *args, **kwargs) -> None:
    """RuntimeError, as from PyTorch (aten/src/ATen/native/Resize.h, checkInBoundsForStorage), if an element of the view
    that as_strided makes of a simulated tensor lies beyond its storage. PyTorch does not ask this of meta tensors."""
    if residence.of(tensor) is None:
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
