"""Normalizations that only CUDA has as operators of their own: cuDNN's batch norm, and RMS norm's gradient."""

from __future__ import annotations

import torch

from simgpu.on_cpu.calls import Call, equivalent

_aten = torch.ops.aten


@equivalent("native_batch_norm.default", "_native_batch_norm_legit.default")
def native_batch_norm(call: Call):
    """The output, the mean and the inverse deviation, in evaluation the running ones (Normalization.cu)."""
    names = "input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"
    output, *saved = call.operator(*call[names])
    mean, variance = call["running_mean", "running_var"]
    if not call["training"]:
        saved = [mean, (variance.to(call.outputs[2].dtype) + call["eps"]).rsqrt()]
    return [output, *(one if like.numel() else None for one, like in zip(saved, call.outputs[1:], strict=True))]


@equivalent("cudnn_batch_norm.default")
def batch_norm(call: Call):
    """The output, and in training the mean and the inverse deviation of the batch."""
    given = call["input", "weight", "bias", "running_mean", "running_var", "training"]
    found = _aten.native_batch_norm(*given, *call["exponential_average_factor", "epsilon"])
    return [found[0], *(found[1:] if call["training"] else (None, None)), None]


@equivalent("cudnn_batch_norm_backward.default")
def batch_norm_backward(call: Call):
    """The gradients of the input, the weight and the bias."""
    names = "grad_output", "input", "weight", "running_mean", "running_var", "save_mean", "save_var"
    return _aten.native_batch_norm_backward(*call[names], True, call["epsilon"], [True] * 3)


@equivalent("batch_norm_backward.default")
def new_batch_norm_backward(call: Call):
    """The same, whichever kernel went forward."""
    names = "grad_out", "input", "weight", "running_mean", "running_var", "save_mean", "save_var", "update", "eps"
    return _aten.native_batch_norm_backward(*call[names], call["output_mask"])


@equivalent("_batch_norm_with_update.default")
def batch_norm_with_update(call: Call):
    """Batch norm in training."""
    names = "input", "weight", "bias", "running_mean", "running_var"
    return [*_aten.native_batch_norm(*call[names], True, *call["momentum", "eps"]), None]


@equivalent("_fused_rms_norm_backward.default")
def rms_norm_backward(call: Call):
    """The gradients of the input and of the weight (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""
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
