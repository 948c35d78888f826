"""Rules for matmuls of groups of rows, as in mixtures of experts (aten/src/ATen/native/cuda/GroupedBlas.cpp)."""

import torch

from simgpu.kernels.gemm import check_same
from simgpu.kernels.launch import Launch, rule
from simgpu.tensors import values

POINTER, STRIDE, SHAPE = 8, 8, 12  # bytes that CUTLASS stores per operand and per problem
DESCRIPTORS = 512  # bytes of CUTLASS's workspace per multiprocessor: its TMA descriptors


def _fast(launch: Launch) -> bool:
    """Returns whether CUTLASS's single kernel computes it, for compute capability 9.0 to 10.x."""
    operands = (*launch["self", "mat2"], *launch.outputs)
    return launch.machine.spec.compute_capability[0] in (9, 10) and all(t.dtype == torch.bfloat16 for t in operands)


@rule("_grouped_mm.default")
def grouped_product(launch: Launch) -> None:
    """Rule of _grouped_mm_cuda: CUTLASS's kernel with its arguments on the device, or one matmul per group."""
    (output,) = launch.outputs
    launch.give(output)
    left, right, ends = launch["self", "mat2", "offs"]
    if _fast(launch):
        groups = left.shape[0] if ends is None else ends.shape[0]
        _arguments(launch, groups)
        return
    check_same(left, right, batched=left.dim() == right.dim() == 3)
    if output.numel() and left.shape[-1] and (ends is None or not _all_empty(ends)):
        launch.machine.take_blas_workspace(launch.in_backward)


def _arguments(launch: Launch, groups: int) -> None:
    """Allocates the arguments of bf16bf16_grouped_gemm_impl, then CUTLASS's workspace.

    The arguments are pointers of three operands, aligned to 16 B, strides, and shapes
    (aten/src/ATen/native/cuda/GroupMM.cu).
    """
    launch.scratch((groups + groups % 2) * 3 * POINTER + groups * (SHAPE + 3 * STRIDE))
    launch.scratch(launch.machine.spec.multiprocessors * DESCRIPTORS)


def _all_empty(ends) -> bool:
    """Returns whether it is known that no group has rows, so that there is no matmul at all."""
    known = values.of(ends)
    return known is not None and not known.any()
