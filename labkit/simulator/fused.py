"""Shapes of operators that CUDA computes in one kernel, and that meta tensors make of others or have no kernel for.

The former are all operators of aten with both a CUDA kernel and a CompositeImplicitAutograd one, but for silu_backward,
which PyTorch has shapes of.
"""

import torch

from labkit.simulator.dispatcher import meta


@meta("mish_backward")
def mish_backward(grad_output, input):
    """aten/src/ATen/native/Activation.cpp"""
    return torch.empty_like(input)


@meta("_fused_rms_norm")
def rms_norm(input, normalized_shape, weight, eps):
    """aten/src/ATen/native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda: one fp32 rstd a row (fp64 for fp64)."""
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    rows = input.shape[: input.dim() - len(normalized_shape)]
    rstd = torch.empty(*rows, *[1] * len(normalized_shape), dtype=dtype, device="meta")
    return torch.empty_like(input, memory_format=torch.contiguous_format), rstd


@meta("_fused_rms_norm_backward")
def rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    """The same file, _fused_rms_norm_backward_cuda: gradients of the input and of the weight, those that are wanted."""
    wanted = (output_mask[0], output_mask[1] and weight is not None)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if want else None
        for tensor, want in zip((input, weight), wanted, strict=True)
    )


@meta("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")
@meta("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr")
def step(*args, **kwargs):
    """FusedSgdKernel.cu, FusedAdagradKernel.cu, FusedAdamKernel.cu: parameters and states in place, no result."""
