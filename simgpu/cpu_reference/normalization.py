"""Normalizations that only CUDA has as operators: cuDNN's batch norm, SyncBatchNorm and the gradient of RMS norm."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl

_aten = torch.ops.aten


@cpu_impl("native_batch_norm.default", "_native_batch_norm_legit.default")
def native_batch_norm(call: Call):
    """Returns the output, the mean and the inverse standard deviation, in evaluation the running ones
    (Normalization.cu).
    """
    names = "input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"
    output, *saved = call.operator(*call[names])
    mean, variance = call["running_mean", "running_var"]
    if not call["training"]:
        saved = [mean, (variance.to(call.outputs[2].dtype) + call["eps"]).rsqrt()]
    return [output, *(one if like.numel() else None for one, like in zip(saved, call.outputs[1:], strict=True))]


@cpu_impl("cudnn_batch_norm.default")
def batch_norm(call: Call):
    """Returns the output, and in training the mean and inverse standard deviation of the batch."""
    given = call["input", "weight", "bias", "running_mean", "running_var", "training"]
    found = _aten.native_batch_norm(*given, *call["exponential_average_factor", "epsilon"])
    return [found[0], *(found[1:] if call["training"] else (None, None)), None]


@cpu_impl("cudnn_batch_norm_backward.default")
def batch_norm_backward(call: Call):
    """Returns the gradients of the input, the weight and the bias."""
    names = "grad_output", "input", "weight", "running_mean", "running_var", "save_mean", "save_var"
    return _aten.native_batch_norm_backward(*call[names], True, call["epsilon"], [True] * 3)


@cpu_impl("batch_norm_backward.default")
def new_batch_norm_backward(call: Call):
    """Returns the gradients that `output_mask` requests, for any forward kernel."""
    names = "grad_out", "input", "weight", "running_mean", "running_var", "save_mean", "save_var", "update", "eps"
    return _aten.native_batch_norm_backward(*call[names], call["output_mask"])


@cpu_impl("_batch_norm_with_update.default")
def batch_norm_with_update(call: Call):
    """Returns batch norm in training mode, with an empty reserve."""
    names = "input", "weight", "bias", "running_mean", "running_var"
    return [*_aten.native_batch_norm(*call[names], True, *call["momentum", "eps"]), None]


@cpu_impl("batch_norm_stats.default")
def batch_norm_stats(call: Call):
    """Returns the mean and inverse standard deviation of each channel.

    (Normalization.cuh, like all operators of SyncBatchNorm below)
    """
    tensor = call["input"].to(call.outputs[0].dtype)
    over = [0, *range(2, tensor.dim())]
    return tensor.mean(over), (tensor.var(over, unbiased=False) + call["eps"]).rsqrt()


@cpu_impl("batch_norm_gather_stats_with_counts.default")
def batch_norm_gather_stats(call: Call):
    """Returns the statistics over all ranks and updates the running ones in place
    (batch_norm_reduce_statistics_kernel).
    """
    names = "mean", "invstd", "running_mean", "running_var", "momentum", "eps", "counts"
    means, invstds, running_mean, running_var, momentum, eps, counts = call[names]
    dtype = call.outputs[0].dtype
    means, invstds, counts = means.to(dtype), invstds.to(dtype), counts.to(dtype).unsqueeze(1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    squares = ((invstds.pow(-2) - eps + (means - mean).square()) * counts).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_((squares / (count - 1)).to(running_var.dtype), momentum)
    return mean, (squares / count + eps).rsqrt()


@cpu_impl("batch_norm_elemt.default")
def batch_norm_elemt(call: Call):
    """Returns the batch, normalized by the given mean and inverse standard deviation."""
    tensor, weight, bias, mean, invstd = call["input", "weight", "bias", "mean", "invstd"]
    found = (tensor - _along(mean, tensor)) * _along(invstd, tensor)
    found = found if weight is None else found * _along(weight, tensor)
    return [found if bias is None else found + _along(bias, tensor)]


@cpu_impl("batch_norm_backward_reduce.default")
def batch_norm_backward_reduce(call: Call):
    """Returns two sums and the gradients of weight and bias.

    The sums are those of the gradient, and of the gradient times the deviation from the mean.
    """
    grad, tensor, mean, invstd = call["grad_out", "input", "mean", "invstd"]
    grad, tensor = grad.to(mean.dtype), tensor.to(mean.dtype)
    over = [0, *range(2, tensor.dim())]
    total, product = grad.sum(over), (grad * (tensor - _along(mean, tensor))).sum(over)
    found = total, product, product * invstd, total
    return [None if like is None or not like.numel() else one for one, like in zip(found, call.outputs, strict=True)]


@cpu_impl("batch_norm_backward_elemt.default")
def batch_norm_backward_elemt(call: Call):
    """Returns the gradient of the batch, from the sums over all ranks."""
    names = "grad_out", "input", "mean", "invstd", "weight", "sum_dy", "sum_dy_xmu", "count"
    grad, tensor, mean, invstd, weight, total, product, counts = call[names]
    count = counts.sum()
    mean, factor = _along(mean, tensor), _along(invstd.square() * product / count, tensor)
    found = grad - _along(total / count, tensor) - (tensor - mean) * factor
    return [found * _along(invstd if weight is None else invstd * weight, tensor)]


def _along(channels: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *[1] * (tensor.dim() - 2))


@cpu_impl("_fused_rms_norm_backward.default")
def rms_norm_backward(call: Call):
    """Returns the gradients of the input and of the weight (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""
    grad, given, rstd, weight = call["grad_out", "input", "rstd", "weight"]
    grad, given = grad.to(rstd.dtype), given.to(rstd.dtype)
    dims = list(range(-len(call["normalized_shape"]), 0))
    normed = given * rstd
    scaled = grad if weight is None else grad * weight.to(rstd.dtype)
    of_input = rstd * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))
    rows = list(range(given.dim() - len(dims)))
    of_weight = (grad * normed).sum(rows) if rows else grad * normed
    wanted = call["output_mask"]
    return [of_input if wanted[0] else None, of_weight if wanted[1] and weight is not None else None]
