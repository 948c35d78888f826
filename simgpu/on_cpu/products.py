"""Products of half precision whose results are in single, which only CUDA has (aten/src/ATen/native/cuda/Blas.cpp)."""

from __future__ import annotations

import torch

from simgpu.on_cpu.calls import Call, equivalent


def _result(call: Call, product: torch.Tensor):
    """The product itself, or in the tensor that the call gives for it."""
    return call["out"].copy_(product) if call.operator._overloadname.endswith("out") else product


@equivalent("mm.dtype", "mm.dtype_out", "bmm.dtype", "bmm.dtype_out")
def product(call: Call):
    """A product of matrices, or of batches of them."""
    left, right = (one.to(call["out_dtype"]) for one in call["self", "mat2"])
    return _result(call, left @ right)


@equivalent("addmm.dtype", "addmm.dtype_out")
def sum_and_product(call: Call):
    """A matrix and a product of two."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "mat1", "mat2"]]
    return _result(call, torch.addmm(*wide, beta=call["beta"], alpha=call["alpha"]))


@equivalent("baddbmm.dtype", "baddbmm.dtype_out")
def sum_and_products(call: Call):
    """The same of batches."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "batch1", "batch2"]]
    return _result(call, torch.baddbmm(*wide, beta=call["beta"], alpha=call["alpha"]))
