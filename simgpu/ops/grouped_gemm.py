"""Rules for matmuls of groups of rows, as in mixtures of experts (aten/src/ATen/native/cuda/GroupedBlas.cpp)."""

import torch

from simgpu.ops.gemm import check_same
from simgpu.ops.op_call import OpCall, rule
from simgpu.storage import values

POINTER, STRIDE, SHAPE = 8, 8, 12  # bytes that CUTLASS stores per operand and per problem
DESCRIPTORS = 512  # bytes of CUTLASS's workspace per multiprocessor: its TMA descriptors


def _fast(call: OpCall) -> bool:
    """Returns whether CUTLASS's single kernel computes it, for compute capability 9.0 to 10.x."""
    operands = (*call["self", "mat2"], *call.outputs)
    return call.machine.spec.compute_capability[0] in (9, 10) and all(t.dtype == torch.bfloat16 for t in operands)


@rule("_grouped_mm.default")
def grouped_product(call: OpCall) -> None:
    """Rule of _grouped_mm_cuda: CUTLASS's kernel with its arguments on the device, or one matmul per group."""
    (output,) = call.outputs
    call.allocate_outputs(output)
    left, right, ends = call["self", "mat2", "offs"]
    if _fast(call):
        groups = left.shape[0] if ends is None else ends.shape[0]
        _arguments(call, groups)
        return
    check_same(left, right, batched=left.dim() == right.dim() == 3)
    if output.numel() and left.shape[-1] and (ends is None or not _all_empty(ends)):
        call.machine.take_blas_workspace(call.in_backward)


def _arguments(call: OpCall, groups: int) -> None:
    """Allocates the arguments of bf16bf16_grouped_gemm_impl, then CUTLASS's workspace.

    The arguments are pointers of three operands, aligned to 16 B, strides, and shapes
    (aten/src/ATen/native/cuda/GroupMM.cu).
    """
    call.scratch((groups + groups % 2) * 3 * POINTER + groups * (SHAPE + 3 * STRIDE))
    call.scratch(call.machine.spec.multiprocessors * DESCRIPTORS)


def _all_empty(ends) -> bool:
    """Returns whether it is known that no group has rows, so that there is no matmul at all."""
    known = values.of(ends)
    return known is not None and not known.any()
