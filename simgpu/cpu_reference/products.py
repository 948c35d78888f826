"""Matmuls with half-precision inputs and fp32 results, which only CUDA has (aten/src/ATen/native/cuda/Blas.cpp)."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl


def _result(call: Call, product: torch.Tensor):
    """Returns the result of a matmul, or copies it into the call's `out` and returns that."""
    return call["out"].copy_(product) if call.operator._overloadname.endswith("out") else product


@cpu_impl("mm.dtype", "mm.dtype_out", "bmm.dtype", "bmm.dtype_out")
def product(call: Call):
    """Returns a matmul, or a batched one, in `out_dtype`."""
    left, right = (one.to(call["out_dtype"]) for one in call["self", "mat2"])
    return _result(call, left @ right)


@cpu_impl("addmm.dtype", "addmm.dtype_out")
def sum_and_product(call: Call):
    """Returns a matrix plus a matmul of two, in `out_dtype`."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "mat1", "mat2"]]
    return _result(call, torch.addmm(*wide, beta=call["beta"], alpha=call["alpha"]))


@cpu_impl("baddbmm.dtype", "baddbmm.dtype_out")
def sum_and_products(call: Call):
    """Returns a batch of matrices plus a batched matmul, in `out_dtype`."""
    wide = [one.to(call["out_dtype"]) for one in call["self", "batch1", "batch2"]]
    return _result(call, torch.baddbmm(*wide, beta=call["beta"], alpha=call["alpha"]))
