"""Refuses what PyTorch refuses to pass to NCCL: dtypes that NCCL does not support, and reductions that it does not
know.

The words are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (getNcclDataType, getNcclReduceOp, and the
checks before reductions) and of torch/csrc/cuda/nccl.cpp (to_nccl_data_type), compared with the oracle, torch 2.13.0.
"""

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

from simgpu.distributed.kinds import KINDS

_FLOATS_OF_OTHERS = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
_CARRIED = {
    torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, *_FLOATS_OF_OTHERS,
}  # fmt: skip
_NOT_REDUCED = {*_FLOATS_OF_OTHERS, torch.float8_e8m0fnu}
_SCALED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_UNKNOWN = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_NAMES = {  # c10/core/ScalarType.h
    torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64",
    torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}  # fmt: skip


def check(name: str, tensors: Sequence[torch.Tensor], operation=None) -> None:
    """Raises PyTorch's TypeError, ValueError or RuntimeError if NCCL does not support a collective of these GPU
    tensors.

    `name` is one of `kinds.KINDS`. `operation` is the reduction; None for a sum, or if there is none.
    """
    collective, kind = KINDS[name], getattr(operation, "op", operation)
    for dtype in {tensor.dtype: None for tensor in tensors}:
        if not collective.reduces_float8 and dtype in _NOT_REDUCED:
            raise RuntimeError("Unsupported Float8 type for NCCL reduction")
        if dtype.is_complex and collective.complex_as_real:
            if kind not in (None, ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
                number = chr(kind.value)  # the operation's number, which C++ writes as a character
                raise RuntimeError(f"{name} does not support{number}on complex tensors")
            continue
        if dtype not in _CARRIED:
            named = _NAMES.get(dtype, str(dtype).removeprefix("torch.").capitalize())
            if collective.by_torch_cuda:
                raise RuntimeError(f"Unconvertible NCCL type {named}")
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {named}")
        if kind == ReduceOp.AVG and dtype == torch.bool:
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        if kind == ReduceOp.PREMUL_SUM and dtype not in _SCALED:
            raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
        if kind in _UNKNOWN:
            raise ValueError(f"Cannot use ReduceOp.{kind.name} with NCCL")
