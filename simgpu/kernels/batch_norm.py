"""Rules for PyTorch's own batch norm, which runs where cuDNN's does not
(aten/src/ATen/native/cuda/Normalization.cu).
"""

from math import ceil, prod

import torch

from simgpu.kernels.group_norm import accumulator
from simgpu.kernels.launch import Launch, made_of_others, rule
from simgpu.kernels.reduction_scratch import reduce
from simgpu.kernels.scalar_types import name

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


def _merged(launch: Launch, tensor: torch.Tensor):
    """Allocates scratch for reshape()'s copy if the dims after the channels cannot be merged; else returns None."""
    try:
        tensor.view(*tensor.shape[:2], prod(tensor.shape[2:]))
    except RuntimeError:
        return launch.scratch_like(tensor)
    return None


def stage(launch: Launch, tensor: torch.Tensor, partials: int) -> None:
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
        buffer = launch.scratch(accumulator(tensor.dtype) * partials * channels * blocks)
        semaphores = launch.scratch(4 * ceil(channels / width))
        launch.release(semaphores, buffer)


@rule("native_batch_norm.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats")
def batch_norm(launch: Launch) -> None:
    """Rule of batch_norm_cuda: output, mean, invstd; for channels last then mean, moment, count and a spare per
    block.
    """
    tensor, training = launch["input", "training"]
    launch.give(*launch.outputs)
    if tensor.numel() and _has_kernel(tensor):
        _check_dtypes(tensor, *launch["weight", "bias"])
    if training:
        _statistics(launch, tensor)
    _elementwise(launch, tensor)


def _has_kernel(tensor: torch.Tensor) -> bool:
    """Returns whether batch norm has kernels for the layout, or a generic pointwise one is used
    (batch_norm_choose_impl).
    """
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _statistics(launch: Launch, tensor: torch.Tensor) -> None:
    """Allocates as batch_norm_mean_var.

    For channels last this is a dedicated reduction. For layouts without a kernel it is var_mean's reduction, before
    which bfloat16 is converted (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction).
    """
    if not _has_kernel(tensor):
        converted = launch.scratch_like(tensor, torch.float32) if tensor.dtype == torch.bfloat16 else None
        element = accumulator(tensor.dtype)
        others = [dim for dim in range(tensor.dim()) if dim != 1]
        read = tensor if converted is None else torch.empty_like(tensor, dtype=torch.float32)
        reduce(launch, read, others, 4 * element, element)
        launch.release(converted)
    elif channels_last(tensor):
        stage(launch, tensor, partials=4)


def _elementwise(launch: Launch, tensor: torch.Tensor) -> None:
    """Allocates as batch_norm_elementwise: a one-element weight and bias if they are missing and the layout has no
    kernel.
    """
    if not _has_kernel(tensor):
        ones = [launch.scratch(accumulator(tensor.dtype)) for one in launch["weight", "bias"] if one is None]
        launch.release(*reversed(ones))


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
def batch_norm_into(launch: Launch) -> None:
    """Rule of batch_norm_cuda_out, which writes into existing tensors and resizes them: statistics before the
    output.
    """
    output, mean, invstd = launch.outputs
    tensor, training = launch["input", "training"]
    launch.give(mean, invstd)
    if training:
        _statistics(launch, tensor)
    launch.give(output)
    if tensor.numel() and _has_kernel(tensor):
        _check_dtypes(tensor, *launch["weight", "bias"])
    _elementwise(launch, tensor)


@made_of_others("_native_batch_norm_legit.out")
def batch_norm_legit_into(
    input, weight, bias, running_mean, running_var, training, momentum, eps, *, out, save_mean, save_invstd
):
    """Decomposes _batch_norm_legit_cuda_out into native_batch_norm.out."""
    outputs = {"out": out, "save_mean": save_mean, "save_invstd": save_invstd}
    given = (input, weight, bias, running_mean, running_var, training, momentum, eps)
    return torch.ops.aten.native_batch_norm.out(*given, **outputs)


@made_of_others("_native_batch_norm_legit.no_stats_out")
def batch_norm_without_running_into(input, weight, bias, training, momentum, eps, **outputs):
    """Decomposes _batch_norm_legit_no_stats_cuda_out in the same way, without running statistics."""
    return batch_norm_legit_into(input, weight, bias, None, None, training, momentum, eps, **outputs)


@rule("batch_norm_stats.default")
def batch_norm_stats(launch: Launch) -> None:
    """Rule of batch_norm_stats_cuda: the statistics of one rank's batch, for SyncBatchNorm."""
    launch.give(*launch.outputs)
    if channels_last(launch.first):
        stage(launch, launch.first, partials=4)
    else:
        launch.release(_merged(launch, launch.first))


@rule("batch_norm_elemt.default")
def batch_norm_elemt(launch: Launch) -> None:
    """Rule of batch_norm_elemt_cuda."""
    launch.give(*launch.outputs)
    _elementwise(launch, launch["input"])


@rule("batch_norm_backward_reduce.default")
def batch_norm_backward_reduce(launch: Launch) -> None:
    """Rule of batch_norm_backward_reduce_cuda."""
    grad, tensor = launch["grad_out", "input"]
    staged = channels_last(grad) and channels_last(tensor)
    copies = [] if staged else [_merged(launch, tensor), _merged(launch, grad)]
    launch.give(*launch.outputs)
    if staged:
        stage(launch, tensor, partials=2)
    launch.release(*reversed(copies))


@rule("native_batch_norm_backward.default")
def batch_norm_backward(launch: Launch) -> None:
    """Rule of batch_norm_backward_cuda: one kernel; or for channels last, two sums per channel first.

    The sums come with the gradients of weight and bias. If cuDNN ran forward in evaluation mode it saved no statistics,
    and they are computed again.
    """
    grad, tensor, weight = launch["grad_out", "input", "weight"]
    mean, saved_mean, saved_invstd = launch["running_mean", "save_mean", "save_invstd"]
    training, mask = launch["train", "output_mask"]
    grad_input, grad_weight, grad_bias = launch.outputs
    sums = training or mask[1] or mask[2]
    if sums and mask[0] and not channels_last(tensor):
        copies = _merged(launch, tensor), _merged(launch, grad)
        launch.give(grad_input, grad_weight, grad_bias)
        launch.release(*reversed(copies))
        return
    of_channels = accumulator(tensor.dtype) * tensor.shape[1]
    if sums and saved_mean.numel() == 0 and mean.element_size() != accumulator(tensor.dtype):
        launch.scratch(of_channels)
    if saved_invstd.numel() == 0:
        launch.scratch(of_channels)
    if sums:
        staged = channels_last(tensor) and channels_last(grad)
        copies = [] if staged else [_merged(launch, tensor), _merged(launch, grad)]
        held = [launch.scratch(of_channels) for _ in range(2 if staged or mask[0] else 0)]
        launch.give(grad_weight, grad_bias)
        if staged:
            stage(launch, tensor, partials=2)
        launch.release(*reversed(copies))
        one = None
        if training and mask[0] and weight is None and not _have_kernel(tensor, grad):
            one = launch.scratch(accumulator(tensor.dtype))  # the weight, if there is no kernel for the layouts
        launch.give(grad_input)
        launch.release(one)
        launch.release(*reversed(held))


def _have_kernel(tensor: torch.Tensor, grad: torch.Tensor) -> bool:
    """Returns whether a channels-last kernel of batch norm reads both tensors (batch_norm_choose_impl)."""
    return tensor.dim() < 5 and channels_last(tensor) and channels_last(grad)
