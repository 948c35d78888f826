"""Matrix products: cuBLAS's workspace, and copies of operands that cuBLAS cannot read."""

import torch

from labkit.simulator.kernels.launch import Launch, rule


def readable(matrix: torch.Tensor) -> bool:
    """Whether cuBLAS reads this matrix (2-D) as it lies: row- or column-major, with any leading dimension.

    aten/src/ATen/native/cuda/Blas.cpp, prepare_matrix_for_cublas.
    """
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    if matrix.is_contiguous() or matrix.t().is_contiguous():
        return True
    return (row_stride == 1 and column_stride >= max(1, rows)) or (
        column_stride == 1 and row_stride >= max(1, columns)
    )


def batch_readable(batch: torch.Tensor) -> bool:
    """The same for a batch of matrices (3-D): prepare_batch_matrix_for_cublas."""
    (_, rows, columns), (_, row_stride, column_stride) = batch.shape, batch.stride()
    return (row_stride == 1 and column_stride >= max(1, rows)) or (
        column_stride == 1 and row_stride >= max(1, columns)
    )


def copy_unreadable(launch: Launch, *operands: torch.Tensor) -> None:
    for operand in operands:
        is_readable = readable if operand.dim() == 2 else batch_readable
        if not is_readable(operand):
            launch.scratch_like(operand)


def empty(*operands: torch.Tensor) -> bool:
    return any(operand.numel() == 0 for operand in operands)


@rule("mm.default", "mm.out", "bmm.default", "bmm.out")
def product(launch: Launch) -> None:
    """Output, then copies of what cuBLAS cannot read, then the workspace (Blas.cpp, addmm_out_cuda_impl)."""
    left, right = launch.args[:2]
    launch.give(*launch.outputs)
    if not empty(left, right):
        copy_unreadable(launch, left, right)
        launch.machine.take_blas_workspace(launch.in_backward)


@rule("addmm.default", "addmm.out", "baddbmm.default", "baddbmm.out", "addmm_.default", "baddbmm_.default")
def product_with_addend(launch: Launch) -> None:
    """As `product`, with an addend that is copied into the output first or added by cublasLt's epilogue."""
    left, right = launch.args[1:3]
    launch.give(*launch.outputs)
    if not empty(left, right):
        copy_unreadable(launch, left, right)
        launch.machine.take_blas_workspace(launch.in_backward)


@rule("addmv.default", "addmv_.default", "mv.default", "dot.default", "vdot.default")
def matrix_times_vector(launch: Launch) -> None:
    launch.give(*launch.outputs)
    launch.machine.take_blas_workspace(launch.in_backward)
