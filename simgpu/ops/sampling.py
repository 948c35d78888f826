"""Rules for random numbers of given means and standard deviations, and of Dirichlet distributions."""

import torch

from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reductions import accumulator_of, reduce

# aten/src/ATen/native/DistributionTemplates.h, normal_impl and normal_out_impl. In each, deviations in a tensor are
# checked twice. The results of these checks are unknown, so the deviations are assumed to be valid.


def _check(std) -> None:
    if std.numel():
        least = std.min()
        least.ge(0)


@decomposition("normal.Tensor_float")
def normal_of_means(mean, std=1, *, generator=None):
    """Decomposes normal: draws into the result, with a second tensor that only provides its shape."""
    result = torch.empty(mean.shape, dtype=mean.dtype, device=mean.device)
    shape = torch.empty_like(result, memory_format=torch.contiguous_format)
    result.normal_(0, std).add_(mean)
    del shape
    return result


@decomposition("normal.float_Tensor")
def normal_of_deviations(mean, std, *, generator=None):
    _check(std)
    result = torch.empty(std.shape, dtype=std.dtype, device=std.device)
    _check(std)
    means = torch.full((), mean, dtype=result.dtype, device=result.device)
    result.normal_(0, 1).mul_(std).add_(means)
    return result


@decomposition("normal.Tensor_Tensor")
def normal_of_both(mean, std, *, generator=None):
    _check(std)
    result = torch.empty(torch.broadcast_shapes(mean.shape, std.shape), dtype=mean.dtype, device=mean.device)
    _check(std)
    return result.normal_(0, 1).mul_(std).add_(mean)


@decomposition("normal.Tensor_float_out")
def normal_of_means_into(mean, std=1, *, generator=None, out):
    """Decomposes normal with out=, with a second tensor as large as it that only provides its shape."""
    shape = torch.empty_like(out, memory_format=torch.contiguous_format)
    _resize(out, torch._C._infer_size(mean.shape, out.shape))
    out.normal_(0, std).add_(mean)
    del shape
    return out


@decomposition("normal.float_Tensor_out")
def normal_of_deviations_into(mean, std, *, generator=None, out):
    _check(std)
    means = torch.full((), mean, dtype=out.dtype, device=out.device)
    _resize(out, std.shape)
    return out.normal_(0, 1).mul_(std).add_(means)


@decomposition("normal.Tensor_Tensor_out")
def normal_of_both_into(mean, std, *, generator=None, out):
    _check(std)
    _resize(out, torch._C._infer_size(mean.shape, std.shape))
    return out.normal_(0, 1).mul_(std).add_(mean)


def _resize(out, shape) -> None:
    if out.shape != shape:
        out.resize_(shape)


@rule("_sample_dirichlet.default")
def dirichlet(call: OpCall) -> None:
    """Rule of _s_dirichlet_cuda: gamma samples divided by their sum (aten/src/ATen/native/cuda/Distributions.cpp)."""
    output = call.allocate_output()
    if output.numel():
        call.scratch(output.numel() // output.shape[-1] * output.element_size())
        reduce(call, output, [-1], accumulator_of(output.dtype), output.element_size())
