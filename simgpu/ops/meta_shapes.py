"""Output shapes of operators that CUDA computes in one kernel and that meta tensors decompose or have no kernel for.

The former are all operators of aten with both a CUDA kernel and a CompositeImplicitAutograd one, except silu_backward,
which has a meta kernel. Softmax and losses are here because PyTorch's meta kernels give other strides than CUDA for
some layouts.
"""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.ops.dispatcher import meta
from simgpu.ops.norms import channels_last
from simgpu.shapes import meta_kernels
from simgpu.storage.values import deciding


@meta("mish_backward")
def mish_backward(grad_output, input):
    """Returns the gradient, laid out as the input (aten/src/ATen/native/Activation.cpp)."""
    return torch.empty_like(input)


@meta("rrelu_with_noise")
def rrelu(self, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    """Returns a contiguous output for any input layout.

    (aten/src/ATen/native/cuda/RreluWithNoise.cu, rrelu_with_noise_cuda)
    """
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@meta("_fused_rms_norm")
def rms_norm(input, normalized_shape, weight, eps):
    """Returns the output and one rstd per row, in fp32 (fp64 for fp64).

    (aten/src/ATen/native/cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda)
    """
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    rows = input.shape[: input.dim() - len(normalized_shape)]
    rstd = torch.empty(*rows, *[1] * len(normalized_shape), dtype=dtype, device="meta")
    return torch.empty_like(input, memory_format=torch.contiguous_format), rstd


@meta("_fused_rms_norm_backward")
def rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask):
    """Returns the requested gradients of the input and of the weight.

    (layer_norm_kernel.cu, _fused_rms_norm_backward_cuda)
    """
    wanted = (output_mask[0], output_mask[1] and weight is not None)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if want and tensor is not None else None
        for tensor, want in zip((input, weight), wanted, strict=True)
    )


@meta("baddbmm.dtype")
def batched_product(self, batch1, batch2, out_dtype, *, beta=1, alpha=1):
    """Returns the result of a batched matmul, in a dtype that may differ from the operands'.

    (aten/src/ATen/native/cuda/Blas.cpp, _baddbmm_dtype_cuda)
    """
    return torch.empty(*batch1.shape[:2], batch2.shape[2], dtype=out_dtype, device="meta")


@meta("baddbmm.dtype_out")
def batched_product_into(self, batch1, batch2, out_dtype, *, beta=1, alpha=1, out):
    """Returns `out`, resized to the shape of the batched matmul (Blas.cpp)."""
    return _resized(out, (*batch1.shape[:2], batch2.shape[2]))


@meta("_scaled_mm.out")
def scaled_product_into(self, mat2, *options, out, **named):
    """Returns `out`, resized to the shape of the matmul (ScaledBlas.cpp, _scaled_mm_out_cuda)."""
    return _resized(out, (self.shape[0], mat2.shape[1]))


@meta("_sample_dirichlet", "_standard_gamma", "_standard_gamma_grad", "binomial")
def drawn(parameter, *others, generator=None):
    """Returns one random value per element of the parameter (aten/src/ATen/native/cuda/Distributions.cpp)."""
    return torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")


@meta("_dirichlet_grad")
def dirichlet_grad(x, alpha, total):
    """Returns a contiguous gradient with the shape of `x` (Distributions.cpp)."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


@meta("_cummax_helper", "_cummin_helper")
def cumulative_extremes(input, values, indices, dim):
    """Writes into the existing outputs (aten/src/ATen/native/cuda/ScanKernels.cpp)."""


@meta("_logcumsumexp.out")
def logcumsumexp(input, dim, *, out):
    """Returns `out`, resized to the shape of the input (ScanKernels.cpp)."""
    return _resized(out, input.shape)


@meta("mode.values")
def mode(input, dim=-1, keepdim=False, *, values, indices):
    """Returns the values and indices, resized to the reduced shape (aten/src/ATen/native/Sorting.cpp, mode_out)."""
    shape = torch.ops.aten.amax.default(input, [dim], keepdim).shape
    return _resized(values, shape), _resized(indices, shape)


@meta("sort", "sort.stable")
def sort(input, dim=-1, descending=False, *, stable=None):
    """Returns values and indices with the input's strides if it is dense, else dense in the same dimension order.

    (aten/src/ATen/native/Sorting.cpp, sort_stable)
    """
    return meta_kernels.alike(input), meta_kernels.alike(input, torch.int64)


@meta("poisson")
def poisson(rates, generator=None):
    """Returns a contiguous output (aten/src/ATen/native/cuda/Distributions.cpp, _s_poisson_cuda)."""
    return torch.empty(rates.shape, dtype=rates.dtype, device="meta")


@meta(
    "fake_quantize_per_tensor_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "fake_quantize_per_channel_affine_cachemask",
)
def fake_quantized(input, *options):
    """Returns the output and a mask, both laid out as the input.

    (aten/src/ATen/native/quantized/FakeQuantPerTensorAffine.cpp, FakeQuantPerChannelAffine.cpp)
    """
    return meta_kernels.alike(input), meta_kernels.alike(input, torch.bool)


def _resized(out, shape):
    return out if out.shape == shape else out.resize_(shape)


@meta("_softmax", "_log_softmax")
def softmax(input, dim, half_to_float):
    """Returns a contiguous output for any input layout, as PyTorch's meta kernel does in most cases.

    (aten/src/ATen/native/SoftMax.cpp)
    """
    dtype = torch.float32 if half_to_float else input.dtype
    return torch.empty(input.shape, dtype=dtype, device="meta")


@meta("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(grad_output, output, dim, input_dtype):
    """Returns a contiguous gradient (SoftMax.cpp)."""
    return torch.empty(grad_output.shape, dtype=input_dtype, device="meta")


@meta("_weight_norm_interface")
def weight_norm(v, g, dim=0):
    """Returns the contiguous weight and the norms, laid out as `g`.

    The norms are fp32 for both half precisions, but PyTorch's meta kernel makes them fp32 only for float16
    (aten/src/ATen/native/cuda/WeightNorm.cu).
    """
    dtype = torch.float32 if g.dtype in (torch.float16, torch.bfloat16) else g.dtype
    norms = torch.empty_strided(g.shape, g.stride(), dtype=dtype, device="meta")
    return torch.empty_like(v, memory_format=torch.contiguous_format), norms


@meta("multilabel_margin_loss_forward")
def multilabel_margin_loss(input, target, reduction):
    """Returns the loss and, in the dtype of the input, which classes are targets.

    (aten/src/ATen/native/cuda/MultiLabelMarginCriterion.cu)
    """
    rows = input.shape[:1] if reduction == 0 and input.dim() == 2 else ()
    return input.new_empty(rows), input.new_empty(target.shape)


@meta("fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(grad_output, input, *options):
    """Returns a contiguous gradient (aten/src/ATen/native/cuda/FractionalMaxPool3d.cu)."""
    return torch.empty(input.shape, dtype=input.dtype, device="meta")


@meta("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    """Returns the bags and three index tensors, in the wider dtype of indices and offsets.

    Raises RuntimeError if `include_last_offset` leaves fewer than no bags (aten/src/ATen/native/cuda/EmbeddingBag.cu,
    _embedding_bag_cuda).
    """
    index = torch.promote_types(indices.dtype, offsets.dtype)
    bags = offsets.shape[0] - include_last_offset
    if bags < 0:
        raise RuntimeError("include_last_offset: numBags should be at least 1")
    width, of_maximum = weight.shape[1], mode == 2
    return (
        weight.new_empty(bags, width),
        indices.new_empty(indices.shape[0], dtype=index),
        indices.new_empty(offsets.shape, dtype=index),
        indices.new_empty((bags, width) if of_maximum else 0, dtype=index),
    )


@meta("nonzero_static")
def nonzero_static(tensor, *, size, fill_value=-1):
    """Returns indices [size, dims], stored dim by dim as by nonzero (aten/src/ATen/native/cuda/Nonzero.cu)."""
    return torch.empty_strided((size, tensor.dim()), (1, max(size, 1)), dtype=torch.int64, device="meta")


@meta("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def loss_backward(grad_output, input, *options):
    """Returns a contiguous gradient for any input layout (aten/src/ATen/native/BinaryOps.cpp, Loss.cpp)."""
    return torch.empty(input.shape, dtype=input.dtype, device="meta")


@meta("binary_cross_entropy")
def binary_cross_entropy(input, target, weight=None, reduction=1):
    """Returns the loss in the input's dtype, whatever the dtype of the weight that multiplies it.

    (aten/src/ATen/native/cuda/Loss.cu)
    """
    return torch.empty_like(input) if reduction == 0 else input.new_empty(())


@meta("where.self")
def where(condition, self, other):
    """Returns the result of torch.where; a uint8 condition is converted to bool first.

    (aten/src/ATen/native/TensorCompare.cpp, where_self_out)
    """
    condition = condition.bool() if condition.dtype == torch.uint8 else condition
    return torch._refs.where(condition, self, other)  # pyright: ignore[reportAttributeAccessIssue]


@meta("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad_output, input, *options):
    """Returns the gradient, laid out as the input (aten/src/ATen/native/cuda/Loss.cu)."""
    return torch.empty_like(input)


@meta("multi_margin_loss")
def multi_margin_loss(input, target, p=1, margin=1, weight=None, reduction=1):
    """Returns one loss per row, or a single one if it is reduced (aten/src/ATen/native/cuda/MultiMarginLoss.cu)."""
    return input.new_empty(target.shape if reduction == 0 else ())


@meta("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def multi_margin_loss_backward(grad_output, input, target, *options):
    """Returns a contiguous gradient (MultiMarginLoss.cu)."""
    return torch.empty(input.shape, dtype=input.dtype, device="meta")


@meta("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")
@meta("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr")
def step(*args, **kwargs):
    """Updates parameters and states in place and returns None.

    (FusedSgdKernel.cu, FusedAdagradKernel.cu, FusedAdamKernel.cu)
    """


@meta("native_batch_norm_backward")
def batch_norm_backward(grad, input, weight, mean, variance, saved_mean, saved_invstd, train, eps, output_mask):
    """Returns the requested gradients, and for channels_last those of weight and bias that the kernel computes anyway.

    The input's gradient is contiguous, except in training with a channels_last input (Normalization.cu).
    """
    layout = torch.preserve_format if train and channels_last(input) else torch.contiguous_format
    of_channels = torch.empty(input.shape[1], dtype=input.dtype if weight is None else weight.dtype, device="meta")
    sums = train or output_mask[1] or output_mask[2]
    unasked = sums and weight is not None and channels_last(input) and channels_last(grad)
    return (
        torch.empty_like(input, memory_format=layout) if output_mask[0] else None,
        of_channels if output_mask[1] or unasked else None,
        torch.empty_like(of_channels) if output_mask[2] or unasked else None,
    )


@meta("batch_norm_stats")
def batch_norm_stats(input, eps):
    """Returns the mean and inverse standard deviation of each channel, in the accumulator's dtype
    (Normalization.cu).
    """
    return _of_channels(input), _of_channels(input)


@meta("batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """Returns the statistics over all ranks, at least in fp32 (Normalization.cuh)."""
    dtype = torch.float32 if mean.dtype in (torch.float16, torch.bfloat16) else mean.dtype
    return tuple(torch.empty(mean.shape[1], dtype=dtype, device="meta") for _ in range(2))


@meta("batch_norm_elemt")
def batch_norm_elemt(input, weight, bias, mean, invstd, eps):
    """Returns the output in the memory format suggested for the input (Normalization.cuh)."""
    return torch.empty_like(input, memory_format=suggest_memory_format(input))


@meta("batch_norm_backward_reduce")
def batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
    """Returns two sums per channel and the gradients of weight and bias; for channels_last always all four.

    (Normalization.cuh)
    """
    like = mean if weight is None else weight
    size = (input.shape[1] if weight is not None else 0,)
    if channels_last(grad_out) and channels_last(input):
        return *(torch.empty_like(mean) for _ in range(2)), *(like.new_empty(size) for _ in range(2))
    wanted = zip((mean, mean, like, like), (input_g, input_g, weight_g, bias_g), strict=True)
    return tuple(one.new_empty(input.shape[1]) if want else None for one, want in wanted)


@meta("batch_norm_backward_elemt")
def batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    """Returns the gradient, laid out as the input if `grad_out` is channels_last, else contiguous
    (Normalization.cuh).
    """
    layout = torch.preserve_format if channels_last(grad_out) else torch.contiguous_format
    return torch.empty_like(input, memory_format=layout)


def _of_channels(input):
    dtype = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    return torch.empty(input.shape[1], dtype=dtype, device="meta")


@meta("cudnn_batch_norm")
def cudnn_batch_norm(input, weight, bias, mean, variance, training, momentum, epsilon):
    """Returns the output, the saved statistics (empty in evaluation) and an empty reserve.

    What cuDNN reserves for the backward pass is not modelled (aten/src/ATen/native/cudnn/BatchNorm.cpp).
    """
    saved = weight.numel() if training else 0
    return (
        torch.empty_like(input, memory_format=suggest_memory_format(input)),
        *(torch.empty(saved, dtype=weight.dtype, device="meta") for _ in range(2)),
        torch.empty(0, dtype=torch.uint8, device="meta"),
    )


@meta("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(input, grad_output, weight, mean, variance, saved_mean, saved_var, epsilon, reserve):
    """Returns the three gradients (BatchNorm.cpp)."""
    layout = suggest_memory_format(input)
    return torch.empty_like(input, memory_format=layout), torch.empty_like(weight), torch.empty_like(weight)


@meta("native_layer_norm_backward")
def layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask):
    """Returns the requested gradients, contiguous.

    (aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_backward_cuda)
    """
    wanted = (output_mask[0], output_mask[1] and weight is not None, output_mask[2] and bias is not None)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if want else None  # pyright: ignore[reportArgumentType]
        for tensor, want in zip((input, weight, bias), wanted, strict=True)
    )


@meta("_padded_dense_to_jagged_forward")
def padded_to_jagged(dense, offsets, total_L=None):
    """Returns the rows of a padded tensor without the padding.

    Raises NoValueError if `total_L` is not given and the last offset, which CUDA reads, is not known
    (aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu).
    """
    if total_L is None:
        unknown = "the number of rows of a jagged tensor is read from its offsets here: say total_L"
        total_L = int(deciding(offsets[0][-1], "_padded_dense_to_jagged_forward", unknown).item())
    return torch.empty(total_L, *dense.shape[2:], dtype=dense.dtype, device="meta")


@meta("angle")
def angle(self):
    """Returns the angle; for complex numbers the real part of an intermediate result, copied to a contiguous tensor.

    (aten/src/ATen/native/UnaryOps.cpp)
    """
    if self.is_complex():
        return torch.empty(self.shape, dtype=self.dtype.to_real(), device="meta")
    floating = self.dtype.is_floating_point
    return torch.empty_like(self, dtype=self.dtype if floating else torch.get_default_dtype())
