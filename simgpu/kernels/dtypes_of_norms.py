"""Norms whose weights are of another dtype than what is normalised: which of them PyTorch's kernels refuse, and how."""

import torch

NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
HALVES = (torch.float16, torch.bfloat16)


def _name(dtype: torch.dtype) -> str:
    return NAMES.get(dtype, str(dtype))


def read_as(wanted: torch.dtype, *tensors: torch.Tensor | None) -> None:
    """RuntimeError for the first tensor (None: not there) that is not of the dtype which a kernel reads
    (aten/src/ATen/core/TensorMethods.cpp, check_type, of data_ptr<T>())."""
    for one in tensors:
        if one is not None and one.dtype != wanted:
            raise RuntimeError(f"expected scalar type {_name(wanted)} but found {_name(one.dtype)}")


def check_mixed(tensor: torch.Tensor, weight: torch.Tensor | None) -> None:
    """RuntimeError where a weight of another dtype is not Float, or what is normalised not of half precision, before
    group norm begins (aten/src/ATen/native/cpu/mixed_data_type.h, check_mixed_data_type)."""
    if weight is None or weight.dtype == tensor.dtype:
        return
    if weight.dtype != torch.float32:
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    if tensor.dtype not in HALVES:
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def check_batch_norm(tensor: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
    """RuntimeError where weight or bias of a batch norm have another dtype than its input, or Float where that is of
    half precision (aten/src/ATen/native/cuda/Normalization.cu, batch_norm_elementwise)."""
    wanted = tensor.dtype
    if weight is not None and weight.dtype != wanted and wanted in HALVES:
        wanted = torch.float32
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != wanted:
            raise RuntimeError(f"Expected {name} to have type {_name(wanted)} but got {_name(one.dtype)}")
