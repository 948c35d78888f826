"""Random numbers of given means and deviations."""

import torch

from simgpu.kernels.launch import made_of_others

# aten/src/ATen/native/DistributionTemplates.h, normal_impl and normal_out_impl; in each, deviations are checked twice
# where they are a tensor. What the checks find, no one knows: the deviations are taken as fit.


def _check(std) -> None:
    if std.numel():
        least = std.min()
        least.ge(0)


@made_of_others("normal.Tensor_float")
def normal_of_means(mean, std=1, *, generator=None):
    """Drawn into the result, beside a tensor that is only asked for its shape."""
    result = torch.empty(mean.shape, dtype=mean.dtype, device=mean.device)
    shape = torch.empty_like(result, memory_format=torch.contiguous_format)
    result.normal_(0, std).add_(mean)
    del shape
    return result


@made_of_others("normal.float_Tensor")
def normal_of_deviations(mean, std, *, generator=None):
    _check(std)
    result = torch.empty(std.shape, dtype=std.dtype, device=std.device)
    _check(std)
    means = torch.full((), mean, dtype=result.dtype, device=result.device)
    result.normal_(0, 1).mul_(std).add_(means)
    return result


@made_of_others("normal.Tensor_Tensor")
def normal_of_both(mean, std, *, generator=None):
    _check(std)
    result = torch.empty(torch.broadcast_shapes(mean.shape, std.shape), dtype=mean.dtype, device=mean.device)
    _check(std)
    return result.normal_(0, 1).mul_(std).add_(mean)
