"""Refuses numbers that an operator writes into a tensor whose dtype cannot hold them, as PyTorch does."""

import math

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.op_info import arguments
from simgpu.op_info.op_spec import mark, spec

# Operators whose CUDA kernel converts a number to the result's dtype (Scalar::to: cuda/FillKernel.cu, cuda/Indexing.cu,
# cuda/IndexKernel.cu), with its name in their schema. A meta kernel does not check it.
mark("fill.Scalar fill_.Scalar index_fill.int_Scalar index_fill_.int_Scalar", converted_number="value")
mark("masked_fill.Scalar masked_fill_.Scalar masked_fill.Tensor masked_fill_.Tensor", converted_number="value")
mark("full full_like new_full", converted_number="fill_value")


def check(operator, args, kwargs, result: torch.Tensor) -> None:
    """Raises PyTorch's RuntimeError if `result` cannot hold the `converted_number` of a call."""
    name = spec(operator).converted_number
    assert name is not None, f"{operator} converts no number"
    value = arguments.given(operator, name, args, kwargs)
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
    """Returns whether a number is well within a dtype's range, so that PyTorch need not check it."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max
