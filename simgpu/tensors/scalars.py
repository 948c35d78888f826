"""Numbers that an operator writes into a tensor: PyTorch refuses those that the tensor's dtype cannot hold."""

import math

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.tensors import arguments

_aten = torch.ops.aten

# Operators whose CUDA kernel converts a number to the dtype of its result (Scalar::to: cuda/FillKernel.cu,
# cuda/Indexing.cu, cuda/IndexKernel.cu), and what their schema calls it. A meta kernel does not look at it.
CONVERTED = {
    _aten.fill.Scalar: "value",
    _aten.fill_.Scalar: "value",
    _aten.full.default: "fill_value",
    _aten.full_like.default: "fill_value",
    _aten.new_full.default: "fill_value",
    _aten.index_fill.int_Scalar: "value",
    _aten.index_fill_.int_Scalar: "value",
    _aten.masked_fill.Scalar: "value",
    _aten.masked_fill_.Scalar: "value",
    _aten.masked_fill.Tensor: "value",
    _aten.masked_fill_.Tensor: "value",
}


def check(operator, args, kwargs, result: torch.Tensor) -> None:
    """Raises PyTorch's RuntimeError for a number that `result`, which one of CONVERTED gave, cannot hold."""
    value = arguments.given(operator, CONVERTED[operator], args, kwargs)
    if result.dtype == torch.bool or not result.numel():
        return
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        if isinstance(value, torch.Tensor) and not value.is_meta:
            value = value.item()
        if isinstance(value, (int, float)):
            refuse(value, result.dtype)


def refuse(value: float, dtype: torch.dtype) -> None:
    """Raises PyTorch's RuntimeError for a number that a dtype cannot hold."""
    if not _fits(value, dtype):
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            torch.empty(2, dtype=dtype, device="cpu").fill_(value)


def _fits(value: float, dtype: torch.dtype) -> bool:
    """Whether a number is well within a dtype, so that PyTorch need not be asked."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max
