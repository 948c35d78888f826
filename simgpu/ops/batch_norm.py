"""Rules for PyTorch's own batch norm, which runs where cuDNN's does not (Normalization.cu)."""

from math import ceil, prod

import torch

from simgpu.checks.scalar_types import name
from simgpu.ops.group_norm import accumulator
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reduction_scratch import reduce

MAX_THREADS = 512  # threads per block (Normalization.cuh, MAX_BLOCK_SIZE)
TILE = 32  # initial channels per block (OPTIMAL_TILE_W)
PER_THREAD = 16  # values per thread (ELEMENTS_PER_THREAD)
MAX_BLOCKS, FEW_BLOCKS = 128, 8  # along the reduction (MAX_H_BLOCK); fewer than FEW_BLOCKS are not worth a combined sum


def channels_last(tensor: torch.Tensor) -> bool:
    """Returns whether the channels of a pixel are adjacent, as in any matrix (batch_norm_use_channels_last_kernels)."""
    if tensor.is_contiguous() and tensor.stride(1) == 1:
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _power_of_two(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def _merged(call: OpCall, tensor: torch.Tensor):
    """Allocates scratch for reshape()'s copy if the dims after the channels cannot be merged; else returns None."""
    try:
        tensor.view(*tensor.shape[:2], prod(tensor.shape[2:]))
    except RuntimeError:
        return call.scratch_like(tensor)
    return None


def stage(call: OpCall, tensor: torch.Tensor, partials: int) -> None:
    """Allocates staging buffer and semaphores of a sum over all but the channels, `partials` values per channel and
    block.

    Source: Normalization.cuh, flexible_launch_configs with coop_flag. They are freed in reverse.
    """
    channels = tensor.shape[1]
    values = prod(tensor.shape) // channels
    width = min(_power_of_two(channels), TILE)
    height = min(_power_of_two(ceil(values / PER_THREAD)), MAX_THREADS // width)
    if width * height != MAX_THREADS:
        width = min(_power_of_two(channels), MAX_THREADS // height)
    blocks = min(ceil(values / (height * PER_THREAD)), MAX_BLOCKS)
    if blocks >= FEW_BLOCKS:
        buffer = call.scratch(accumulator(tensor.dtype) * partials * channels * blocks)
        semaphores = call.scratch(4 * ceil(channels / width))
        call.release(semaphores, buffer)


@rule("native_batch_norm.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats")
def batch_norm(call: OpCall) -> None:
    """Rule of batch_norm_cuda: output, mean, invstd; for channels last then mean, moment, count and a spare per
    block.
    """
    tensor, training = call["input", "training"]
    call.allocate_outputs(*call.outputs)
    if tensor.numel() and _has_kernel(tensor):
        _check_dtypes(tensor, *call["weight", "bias"])
    if training:
        _statistics(call, tensor)
    _elementwise(call, tensor)


def _has_kernel(tensor: torch.Tensor) -> bool:
    """Returns whether batch norm has kernels for the layout, or a generic pointwise one is used
    (batch_norm_choose_impl).
    """
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _statistics(call: OpCall, tensor: torch.Tensor) -> None:
    """Allocates as batch_norm_mean_var.

    For channels last this is a dedicated reduction. For layouts without a kernel it is var_mean's reduction, before
    which bfloat16 is converted (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction).
    """
    if not _has_kernel(tensor):
        converted = call.scratch_like(tensor, torch.float32) if tensor.dtype == torch.bfloat16 else None
        element = accumulator(tensor.dtype)
        others = [dim for dim in range(tensor.dim()) if dim != 1]
        read = tensor if converted is None else torch.empty_like(tensor, dtype=torch.float32)
        reduce(call, read, others, 4 * element, element)
        call.release(converted)
    elif channels_last(tensor):
        stage(call, tensor, partials=4)


def _elementwise(call: OpCall, tensor: torch.Tensor) -> None:
    """Allocates as batch_norm_elementwise: a one-element weight and bias if they are missing and the layout has no
    kernel.
    """
    if not _has_kernel(tensor):
        ones = [call.scratch(accumulator(tensor.dtype)) for one in call["weight", "bias"] if one is None]
        call.release(*reversed(ones))


def _check_dtypes(tensor: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> None:
    """Raises RuntimeError if weight or bias have a dtype other than the input's, or Float for an input of half
    precision.

    (aten/src/ATen/native/cuda/Normalization.cu, batch_norm_elementwise; is_mixed_type checks the first that is given.)
    """
    wanted = tensor.dtype
    given = bias if weight is None else weight
    if given is not None and given.dtype != wanted and wanted in (torch.float16, torch.bfloat16):
        wanted = torch.float32
    for which, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != wanted:
            raise RuntimeError(f"Expected {which} to have type {name(wanted)} but got {name(one.dtype)}")


@rule("native_batch_norm.out")
def batch_norm_into(call: OpCall) -> None:
    """Rule of batch_norm_cuda_out, which writes into existing tensors and resizes them: statistics before the
    output.
    """
    output, mean, invstd = call.outputs
    tensor, training = call["input", "training"]
    call.allocate_outputs(mean, invstd)
    if training:
        _statistics(call, tensor)
    call.allocate_outputs(output)
    if tensor.numel() and _has_kernel(tensor):
        _check_dtypes(tensor, *call["weight", "bias"])
    _elementwise(call, tensor)


@decomposition("_native_batch_norm_legit.out")
def batch_norm_legit_into(
    input, weight, bias, running_mean, running_var, training, momentum, eps, *, out, save_mean, save_invstd
):
    """Decomposes _batch_norm_legit_cuda_out into native_batch_norm.out."""
    outputs = {"out": out, "save_mean": save_mean, "save_invstd": save_invstd}
    given = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    return torch.ops.aten.native_batch_norm.out(*given, **outputs)


@decomposition("_native_batch_norm_legit.no_stats_out")
def batch_norm_without_running_into(input, weight, bias, training, momentum, eps, **outputs):
    """Decomposes _batch_norm_legit_no_stats_cuda_out in the same way, without running statistics."""
    return batch_norm_legit_into(input, weight, bias, None, None, training, momentum, eps, **outputs)


@rule("batch_norm_stats.default")
def batch_norm_stats(call: OpCall) -> None:
    """Rule of batch_norm_stats_cuda: the statistics of one rank's batch, for SyncBatchNorm."""
    call.allocate_outputs(*call.outputs)
    if channels_last(call.first):
        stage(call, call.first, partials=4)
    else:
        call.release(_merged(call, call.first))


@rule("batch_norm_elemt.default")
def batch_norm_elemt(call: OpCall) -> None:
    """Rule of batch_norm_elemt_cuda."""
    call.allocate_outputs(*call.outputs)
    _elementwise(call, call["input"])


@rule("batch_norm_backward_reduce.default")
def batch_norm_backward_reduce(call: OpCall) -> None:
    """Rule of batch_norm_backward_reduce_cuda."""
    grad, tensor = call["grad_out", "input"]
    staged = channels_last(grad) and channels_last(tensor)
    copies = [] if staged else [_merged(call, tensor), _merged(call, grad)]
    call.allocate_outputs(*call.outputs)
    if staged:
        stage(call, tensor, partials=2)
    call.release(*reversed(copies))


@rule("native_batch_norm_backward.default")
def batch_norm_backward(call: OpCall) -> None:
    """Rule of batch_norm_backward_cuda: one kernel; or for channels last, two sums per channel first.

    The sums come with the gradients of weight and bias. If cuDNN ran forward in evaluation mode it saved no statistics,
    and they are computed again.
    """
    grad, tensor, weight = call["grad_out", "input", "weight"]
    mean, saved_mean, saved_invstd = call["running_mean", "save_mean", "save_invstd"]
    training, mask = call["train", "output_mask"]
    grad_input, grad_weight, grad_bias = call.outputs
    sums = training or mask[1] or mask[2]
    if sums and mask[0] and not channels_last(tensor):
        copies = _merged(call, tensor), _merged(call, grad)
        call.allocate_outputs(grad_input, grad_weight, grad_bias)
        call.release(*reversed(copies))
        return
    of_channels = accumulator(tensor.dtype) * tensor.shape[1]
    if sums and saved_mean.numel() == 0 and mean.element_size() != accumulator(tensor.dtype):
        call.scratch(of_channels)
    if saved_invstd.numel() == 0:
        call.scratch(of_channels)
    if sums:
        staged = channels_last(tensor) and channels_last(grad)
        copies = [] if staged else [_merged(call, tensor), _merged(call, grad)]
        held = [call.scratch(of_channels) for _ in range(2 if staged or mask[0] else 0)]
        call.allocate_outputs(grad_weight, grad_bias)
        if staged:
            stage(call, tensor, partials=2)
        call.release(*reversed(copies))
        one = None
        if training and mask[0] and weight is None and not _have_kernel(tensor, grad):
            one = call.scratch(accumulator(tensor.dtype))  # the weight, if there is no kernel for the layouts
        call.allocate_outputs(grad_input)
        call.release(one)
        call.release(*reversed(held))


def _have_kernel(tensor: torch.Tensor, grad: torch.Tensor) -> bool:
    """Returns whether a channels-last kernel of batch norm reads both tensors (batch_norm_choose_impl)."""
    return tensor.dim() < 5 and channels_last(tensor) and channels_last(grad)
