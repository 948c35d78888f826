"""Rules for triangular systems and unpacked LU factors, the linear algebra that needs no cuSOLVER."""

import math

import torch

from simgpu.ops.op_call import OpCall, decomposition, rule

FEW_MATRICES, LARGE_SIDE = 8, 64  # BatchLinearAlgebra.cpp, triangular_solve_kernel: within these, one by one

# aten/src/ATen/native/LinearAlgebra.cpp, BatchLinearAlgebra.cpp: a decomposition, or a check and a helper
decomposition("linalg_pinv.atol_rtol_tensor")


def _is_read_as_it_lies(matrices: torch.Tensor) -> bool:
    """Returns whether matrices need no copy (BatchLinearAlgebra.cpp, is_row_or_column_contiguous)."""
    return matrices.is_contiguous() or matrices.mT.is_contiguous()


def _solve(call: OpCall, matrices: torch.Tensor, sides: torch.Tensor) -> None:
    """Allocates as triangular_solve_kernel: arrays of pointers for cuBLAS, and its workspace.

    There is one array per operand, 8 B per matrix, or none for an operand without elements
    (aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp).
    """
    batch = math.prod(matrices.shape[:-2])
    pointers = []
    if batch > FEW_MATRICES or matrices.shape[-1] < LARGE_SIDE:
        pointers = [call.scratch(8 * batch if one.numel() else 0) for one in (matrices, sides)]
    if batch or pointers:
        call.machine.take_blas_workspace(call.in_backward)
    call.release(*reversed(pointers))


@rule("linalg_solve_triangular.default", "linalg_solve_triangular.out")
def solve_triangular(call: OpCall) -> None:
    """Rule of linalg_solve_triangular_out: the right-hand sides are copied into the result, column by column.

    Matrices with a different layout, or broadcast ones, are copied (aten/src/ATen/native/BatchLinearAlgebra.cpp).
    """
    output = call.allocate_output()
    matrices, sides = call["self", "B"]
    batch = torch.broadcast_shapes(matrices.shape[:-2], sides.shape[:-2])
    matrices = matrices.expand(*batch, *matrices.shape[-2:])
    copies = [None] if _is_read_as_it_lies(output) else [call.scratch_like(output)]
    copies.append(None if _is_read_as_it_lies(matrices) else call.scratch_like(matrices))
    _solve(call, matrices, output)
    call.release(*reversed(copies))


@rule("triangular_solve.default")
def triangular_solve(call: OpCall) -> None:
    """Rule of triangular_solve_out: both operands are copied, into the results (BatchLinearAlgebra.cpp)."""
    solution, matrices = call.outputs
    call.allocate_outputs(solution, matrices)
    _solve(call, matrices, solution)


@rule("lu_unpack.default")
def unpack(call: OpCall) -> None:
    """Rule of lu_unpack_out: the permutation as int64, first one arange, then one per matrix
    (BatchLinearAlgebra.cpp).
    """
    call.allocate_outputs(*call.outputs)
    pivots, wanted = call["LU_pivots", "unpack_pivots"]
    if not wanted:
        return
    permutation = call.outputs[0]
    rows = permutation.shape[-1]
    ramp = call.scratch(8 * rows)
    if math.prod(permutation.shape[:-2]) > 1:
        for_each = call.scratch(8 * math.prod(permutation.shape[:-1]))
        call.release(ramp)
        ramp = for_each
    copies = call.contiguous(pivots)
    call.release(*copies, ramp)
