"""Group norm (aten/src/ATen/native/cuda/group_norm_kernel.cu)."""

import torch

from simgpu.kernels.dtypes_of_norms import check_mixed, read_as
from simgpu.kernels.launch import Launch, rule


def accumulator(dtype: torch.dtype) -> int:
    """Bytes of the type that sums are kept in: float32 for the half types."""
    return max(4, dtype.itemsize)


@rule("native_group_norm.default")
def group_norm(launch: Launch) -> None:
    """GroupNormKernelImplInternal: for half types float32 moments, then a scale and a shift for each channel."""
    tensor, weight, bias = launch["input", "weight", "bias"]
    samples, channels, pixels, groups = launch["N", "C", "HxW", "group"]
    size = accumulator(tensor.dtype)
    check_mixed(tensor, weight)
    launch.contiguous(tensor)
    launch.give(*launch.outputs)
    if tensor.numel():
        read_as(tensor.dtype, weight)
    if tensor.dtype.itemsize < size:
        launch.scratch(samples * groups * size), launch.scratch(samples * groups * size)
    if pixels > 1 and (weight is not None or bias is not None):
        launch.scratch(samples * channels * size), launch.scratch(samples * channels * size)
    if tensor.numel():
        read_as(tensor.dtype, bias)


@rule("native_group_norm_backward.default")
def group_norm_backward(launch: Launch) -> None:
    """GroupNormBackwardKernelImplInternal: two sums a channel; for the input's gradient a factor for each channel
    and two for each group."""
    tensor, weight = launch["input", "weight"]
    samples, channels, pixels, groups, mask = launch["N", "C", "HxW", "group", "output_mask"]
    size = accumulator(tensor.dtype)
    launch.give(*launch.outputs)
    launch.scratch(samples * channels * size), launch.scratch(samples * channels * size)
    if mask[0]:
        of_groups = [launch.scratch(samples * groups * size) for _ in range(2)]
        if pixels > 1 and weight is not None:
            launch.scratch(samples * channels * size)
        launch.release(*reversed(of_groups))
