"""Rules for group norm (aten/src/ATen/native/cuda/group_norm_kernel.cu)."""

import torch
from torch._prims_common import suggest_memory_format

from simgpu.checks.scalar_types import name, read_as
from simgpu.ops.convolution_geometry import CHANNELS_LAST
from simgpu.ops.op_call import OpCall, rule


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
