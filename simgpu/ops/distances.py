"""Rules for distances between rows (aten/src/ATen/native/cuda/DistanceKernel.cu)."""

import math

import torch

from simgpu.checks.scalar_types import read_as
from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.reduction_scratch import accumulator_of, reduce


@rule("_pdist_backward.default")
def pdist_backward(call: OpCall) -> None:
    """Rule of pdist_backward_kernel_impl: the contribution of every other row to each row, then the sum."""
    output = call.allocate_output()
    grad, (tensor, p) = call.first, call["self", "p"]  # named grad_output from torch 2.14 on
    if p == 0 or grad.numel() == 0 or tensor.numel() == 0:
        return
    shares = torch.empty(tensor.shape[0] - 1, *output.shape, dtype=output.dtype, device="meta")
    call.scratch_like(shares)
    reduce(call, shares, [0], accumulator_of(output.dtype), output.element_size())


@rule("_cdist_backward.default")
def cdist_backward(call: OpCall) -> None:
    """Rule of _cdist_backward (Distance.cpp) and cdist_backward_kernel_impl.

    It allocates, per row of the second tensor, its contribution to each row of the first, and then the sum.
    """
    (output,) = call.outputs
    grad, (first, second, p, distances) = call.first, call["x1", "x2", "p", "cdist"]
    if 0 in (grad.numel(), first.numel(), second.numel()):
        call.allocate_outputs(output)
        return
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    call.contiguous(*(tensor.expand(*batch, *tensor.shape[-2:]) for tensor in (first, second)))
    call.contiguous(distances, grad)
    call.allocate_outputs(output)
    if p == 0:
        return
    shape = math.prod(batch), second.shape[-2], first.shape[-2], first.shape[-1]
    shares = torch.empty(shape, dtype=output.dtype, device="meta")
    held = call.scratch_like(shares)
    reduce(call, shares, [1], accumulator_of(output.dtype), output.element_size())
    call.release(held)


@rule("_cdist_forward.default")
def cdist(call: OpCall) -> None:
    """Rule of cdist_impl (aten/src/ATen/native/Distance.cpp): batches are made equal and contiguous."""
    first, second = call["x1", "x2"]
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    call.contiguous(*(tensor.expand(*batch, *tensor.shape[-2:]) for tensor in (first, second)))
    call.allocate_outputs(*call.outputs)
    if call.outputs[0].numel():
        read_as(first.dtype, second)
