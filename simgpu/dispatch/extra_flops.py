"""Counts the operations of matmuls and factorizations that torch.utils.flop_counter does not know.

Matmuls: of integers, in groups, with packed weights, summed over a batch. Factorizations: as textbooks count them for
real matrices (Golub and Van Loan, Matrix Computations, 4th edition, chapters 3 to 5, 7 and 8; singular values by R-SVD,
figure 8.6.1; a matrix exponential: the five matmuls of Bader, Blanes and Casas, 2019). They run at the rate of large
matmuls, which a factorization of one matrix never reaches, because its columns depend on each other. The actual rates
of cuSOLVER and MAGMA are not published by shape. So these times are lower bounds, and real ones of small matrices are
many times longer.

Each function takes the call's arguments by position, and its outputs.
"""

from math import prod

import torch

aten = torch.ops.aten


def _shape(matrix: torch.Tensor) -> tuple[int, int, int]:
    """Returns the number of matrices, and their rows and columns."""
    *batch, rows, columns = matrix.shape
    return prod(batch), rows, columns


def _width(matrix: torch.Tensor, right: torch.Tensor) -> int:
    """Returns the columns of right-hand sides, which may be vectors."""
    return right.shape[-1] if right.dim() >= 2 and right.shape[-2] == matrix.shape[-1] else 1


def _inner(args, outputs) -> int:
    """Counts a matmul whose sum runs over the first argument's last dim, for each element of the output."""
    return 2 * outputs[0].numel() * args[0].shape[-1]


def _grouped(args, outputs) -> int:
    """Counts a grouped matmul: groups along the sum share it, and otherwise each output element sums over all of it."""
    left, right = args[:2]
    if left.dim() == right.dim() == 2:
        return 2 * left.shape[0] * left.shape[1] * right.shape[1]
    return _inner(args, outputs)


def _batch_added(args, outputs) -> int:
    _, left, right = args[:3]
    return 2 * left.numel() * right.shape[-1]


def _cholesky(args, outputs) -> int:
    batch, n, _ = _shape(args[0])
    return batch * n**3 // 3


def _lu(args, outputs) -> int:
    batch, m, n = _shape(args[0])
    p = min(m, n)
    return batch * (2 * m * n * p - (m + n) * p**2 + 2 * p**3 // 3)


def _solve(args, outputs) -> int:
    _, n, _ = _shape(args[0])
    batch = outputs[0].numel() // max(1, n * _width(*args[:2]))
    return _lu(args, outputs) + 2 * batch * n**2 * _width(*args[:2])


def _substitute(times: int, matrix: int, right: int):
    """Returns a counter of `times` n² per right-hand side; `matrix` and `right` are positions among the arguments."""

    def count(args, outputs) -> int:
        return times * args[matrix].shape[-1] * args[right].numel()

    return count


def _inverse(args, outputs) -> int:
    batch, n, _ = _shape(args[0])
    return 2 * batch * n**3


def _householder(args, outputs) -> int:
    batch, m, n = _shape(args[0])
    long, short = max(m, n), min(m, n)
    return batch * (2 * short**2 * long - 2 * short**3 // 3)


def _qr(args, outputs) -> int:
    wanted = 1 if args[1:2] == ("r",) else 2  # computing Q from the reflections costs as much as they do
    return wanted * _householder(args, outputs)


def _eigh(args, outputs) -> int:
    batch, n, _ = _shape(args[0])
    vectors = args[2] if len(args) > 2 else True
    return batch * (9 * n**3 if vectors else 4 * n**3 // 3)


def _svd(args, outputs) -> int:
    batch, m, n = _shape(args[0])
    long, short = max(m, n), min(m, n)
    vectors = args[2] if len(args) > 2 else True
    return batch * (6 * long * short**2 + 20 * short**3 if vectors else 2 * long * short**2 + 2 * short**3)


def _cubes(times: int):
    def count(args, outputs) -> int:
        batch, n, _ = _shape(args[0])
        return times * batch * n**3

    return count


PRODUCTS = {
    aten._grouped_mm: _grouped,
    aten._scaled_grouped_mm: _grouped,
    aten._weight_int8pack_mm: _inner,
    aten._weight_int4pack_mm: _inner,
    aten.addbmm: _batch_added,
    aten.addbmm_: _batch_added,
}
FACTORIZATIONS = {
    aten.linalg_cholesky_ex: _cholesky,
    aten.linalg_ldl_factor_ex: _cholesky,
    aten.linalg_lu: _lu,
    aten.linalg_lu_factor_ex: _lu,
    aten._linalg_det: _lu,
    aten._linalg_slogdet: _lu,
    aten._linalg_solve_ex: _solve,
    aten.linalg_solve_triangular: _substitute(1, 0, 1),
    aten.triangular_solve: _substitute(1, 1, 0),
    aten.cholesky_solve: _substitute(2, 1, 0),
    aten.linalg_lu_solve: _substitute(2, 0, 2),
    aten.linalg_ldl_solve: _substitute(2, 0, 2),
    aten.linalg_inv_ex: _inverse,
    aten.linalg_qr: _qr,
    aten.linalg_householder_product: _householder,
    aten._linalg_eigh: _eigh,
    aten._linalg_svd: _svd,
    aten.linalg_eig: _cubes(25),
    aten.linalg_eigvals: _cubes(10),
    aten._linalg_eigvals: _cubes(10),
    aten.linalg_matrix_exp: _cubes(10),
}
"""Functions that count an operator's operations."""
