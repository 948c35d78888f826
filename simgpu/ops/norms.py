"""Rules for layer norm, RMS norm, group norm and batch norm."""

from math import ceil, prod

import torch
from torch._prims_common import suggest_memory_format

from simgpu.checks.scalar_types import name, read_as
from simgpu.ops.convolution import CHANNELS_LAST
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reductions import reduce

# Rules for layer norm and RMS norm.

MANY_ROWS = 64 * 1024  # above this, partial sums: layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel
PARTIAL_ROWS = 32  # the least rows per partial sum
PARTIAL_BLOCKS = 32 * 1024  # the most thread blocks


@rule("native_layer_norm.default")
def layer_norm(call: OpCall) -> None:
    """Rule of layer_norm_cuda: output, mean, rstd, from dense copies of the inputs (layer_norm_kernel.cu).

    All inputs are read as of the first one's dtype.
    """
    tensor, weight, bias = call["input", "weight", "bias"]
    call.contiguous(tensor, weight, bias)
    call.allocate_outputs(*call.outputs)
    if tensor.numel():
        read_as(tensor.dtype, weight, bias)


@rule("_fused_rms_norm.default")
def rms_norm(call: OpCall) -> None:
    """Rule of _fused_rms_norm_cuda: output and rstd, computed from dense copies of the inputs."""
    call.contiguous(*call["input", "weight"])
    call.allocate_outputs(*call.outputs)


@rule("native_layer_norm_backward.default", "_fused_rms_norm_backward.default")
def layer_norm_backward(call: OpCall) -> None:
    """Rule of layer_norm_backward_cuda and _fused_rms_norm_backward_cuda, which has no bias.

    The incoming gradient is made dense after the outputs (layer_norm_kernel.cu).
    """
    grad, tensor, shape, weight = call["grad_out", "input", "normalized_shape", "weight"]
    grad_input, *grads = call.outputs
    call.contiguous(tensor, weight, call.get("bias"))
    call.allocate_outputs(grad_input)
    columns = prod(shape)
    rows = tensor.numel() // columns if columns else 0
    _sums_weights(call, grad, grads, rows, columns)


def _sums_weights(call: OpCall, grad: torch.Tensor, grads: list, rows: int, columns: int) -> None:
    """Allocates the gradients of weights (None if not required): sums of `rows` x `columns` products over the rows.

    With many rows and few columns, blocks of rows are summed first, and their sums with sum(0), whose results replace
    gradients that are already allocated (LaunchGammaBetaBackwardCUDAKernel).
    """
    blocks = ceil(columns / PARTIAL_ROWS)
    if rows <= MANY_ROWS or columns // 32 >= call.machine.spec.multiprocessors // 2:
        call.allocate_outputs(*grads)
        if rows and columns:
            call.contiguous(grad)
        return
    wanted = [output for output in grads if output is not None]
    if not wanted:
        call.contiguous(grad)
        return
    replaced = [call.scratch_like(output) for output in wanted]
    call.contiguous(grad)
    height = min(PARTIAL_BLOCKS // blocks, ceil(rows / PARTIAL_ROWS))
    partials = [torch.empty(height, output.shape[-1], dtype=output.dtype, device="meta") for output in wanted]
    for partial in partials:
        call.scratch_like(partial)
    for output, partial, old in zip(wanted, partials, replaced, strict=True):
        call.allocate_outputs(output)
        reduce(call, partial, [0], max(4, output.element_size()), output.element_size())
        call.release(old)


# Rules for group norm (aten/src/ATen/native/cuda/group_norm_kernel.cu).


def accumulator(dtype: torch.dtype) -> int:
    """Returns the bytes of the accumulator's dtype, which is float32 for the half types."""
    return max(4, dtype.itemsize)


def _copies(call: OpCall, tensor: torch.Tensor, *others: torch.Tensor) -> list:
    """Allocates copies of `others` and of the input for each that lacks the kernel's layout; None for the rest.

    This is in native_group_norm and its backward from torch 2.14 on; before, callers copy. From 2.15 on the layout is
    the input's own, including channels last.
    """
    version = call.machine.torch_version
    if version < (2, 14):
        return []
    layout = suggest_memory_format(tensor) if version >= (2, 15) else torch.contiguous_format
    return [None if one.is_contiguous(memory_format=layout) else call.scratch_like(one) for one in (*others, tensor)]


def _channels_last(call: OpCall, tensor: torch.Tensor) -> bool:
    """Returns whether the kernels for channels last run, from torch 2.15 on (GroupNormKernelImplInternal).

    They also run for a tensor that is both channels last and contiguous: a single channel, or a single pixel.
    """
    layout = CHANNELS_LAST.get(tensor.dim())
    if call.machine.torch_version < (2, 15) or layout is None:
        return False
    both = tensor.shape[1] == 1 or tensor[0, 0].numel() == 1 if tensor.numel() else True
    return both or tensor.is_contiguous(memory_format=layout)


@rule("native_group_norm.default")
def group_norm(call: OpCall) -> None:
    """Rule of GroupNormKernelImplInternal: float32 moments for half types (from torch 2.13 on), then scale and shift.

    Scale and shift are per channel. aten/src/ATen/native/group_norm.cpp accepts parameters in float32 with an input of
    a half type, and computes moments in their dtype. CUDA's kernel reads all of them as of the input's dtype.
    """
    tensor, weight, bias = call["input", "weight", "bias"]
    samples, channels, pixels, groups = call["N", "C", "HxW", "group"]
    size = accumulator(tensor.dtype)
    given = [one for one in (weight, bias) if one is not None]
    mixed = bool(given) and given[0].dtype != tensor.dtype
    if mixed:
        _check_mixed(tensor, given)
    if call.machine.torch_version < (2, 14):
        call.contiguous(tensor)
    call.allocate_outputs(call.outputs[0])
    if mixed:
        call.scratch(samples * groups * size), call.scratch(samples * groups * size)
        read_as(tensor.dtype, *given)
    call.allocate_outputs(*call.outputs)
    _copies(call, tensor)
    if tensor.dtype.itemsize < size and call.machine.torch_version >= (2, 13):
        call.scratch(samples * groups * size), call.scratch(samples * groups * size)
    if _channels_last(call, tensor) or (pixels > 1 and (weight is not None or bias is not None)):
        call.scratch(samples * channels * size), call.scratch(samples * channels * size)
        read_as(tensor.dtype, *given)
    elif tensor.dtype.itemsize >= size:  # GroupNorm1dForward's iterator accepts mixed dtypes only for half types
        for one in given:
            if one.dtype != tensor.dtype:
                raise RuntimeError(f"Found dtype {name(one.dtype)} but expected {name(tensor.dtype)}")


def _check_mixed(tensor, given: list) -> None:
    """Raises the errors for parameters of a different dtype (mixed_data_type.h, check_mixed_data_type)."""
    if any(one.dtype != torch.float32 for one in given):
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    if tensor.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


@rule("native_group_norm_backward.default")
def group_norm_backward(call: OpCall) -> None:
    """Rule of GroupNormBackwardKernelImplInternal: two sums per channel, and factors for the input's gradient.

    The factors are one per channel and two per group. From torch 2.14 on a single pixel needs no sums, and from 2.15 on
    channels last needs no factors.
    """
    tensor, weight, grad_output = call["input", "weight", "grad_out"]
    samples, channels, pixels, groups, mask = call["N", "C", "HxW", "group", "output_mask"]
    size = accumulator(tensor.dtype)
    _copies(call, tensor, grad_output)
    call.allocate_outputs(*call.outputs)
    channels_last = _channels_last(call, tensor)
    if pixels > 1 or channels_last or call.machine.torch_version < (2, 14):
        call.scratch(samples * channels * size), call.scratch(samples * channels * size)
    if mask[0]:
        of_groups = [call.scratch(samples * groups * size) for _ in range(2)]
        if pixels > 1 and weight is not None and not channels_last:
            call.scratch(samples * channels * size)
        call.release(*reversed(of_groups))


# Rules for PyTorch's own batch norm, which runs where cuDNN's does not (Normalization.cu).

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
