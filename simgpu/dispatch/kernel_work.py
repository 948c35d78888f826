"""Estimates the work of kernels for which the bytes and operations of the arguments are not enough."""

from math import ceil, log2, prod

import torch

from simgpu.clock import achieved_rates, rates
from simgpu.gpus.specs import Spec
from simgpu.op_info import arguments
from simgpu.ops.sorting import FEW_SEGMENTS, LARGE_SEGMENT, SHORT, bits_of_permutation, by_many_blocks

# Counts the operations of matmuls and factorizations that torch.utils.flop_counter does not know.
# Matmuls: of integers, in groups, with packed weights, summed over a batch. Factorizations: as textbooks count them
# for real matrices (Golub and Van Loan, Matrix Computations, 4th edition, chapters 3 to 5, 7 and 8; singular values
# by R-SVD, figure 8.6.1; a matrix exponential: the five matmuls of Bader, Blanes and Casas, 2019). They run at the
# rate of large matmuls, which a factorization of one matrix never reaches, because its columns depend on each other.
# The actual rates of cuSOLVER and MAGMA are not published by shape. So these times are lower bounds, and real ones of
# small matrices are many times longer.
# Each function takes the call's arguments by position, and its outputs.

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


# Estimates the time of grouped convolutions: a group fills only part of a tile, and depthwise ones use no Tensor
# Cores.
# A convolution is an implicit matmul of the output's positions by its channels. Each group is a separate matmul, with
# as many columns as the group has output channels. CUTLASS's tiles are at least `rates.CONVOLUTION_TILE` columns
# wide, so a narrower group wastes the rest of the tile, however many groups share it. In the gradient of the input,
# the columns are the group's input channels. In that of the weight, the rows are the group's output channels, and the
# columns its input channels times the kernel's positions. Depthwise convolutions run without Tensor Cores, in CUTLASS
# and in PyTorch's own kernels (aten/src/ATen/native/cuda/DepthwiseConv2d.cu), which accumulate in float32. How much
# slower the kernels of a given cuDNN version are is not published, and not modelled.


def _filled(columns: int, tile: int) -> float:
    return columns / (ceil(columns / tile) * tile)


def _channels(weight, transposed: bool, groups: int) -> tuple[int, int]:
    """Returns the input and output channels of a group."""
    if transposed:
        return weight.shape[0] // groups, weight.shape[1]
    return weight.shape[1], weight.shape[0] // groups


def seconds(spec: Spec, operator, args, kwargs, outputs, flops: int, precision: str) -> float | None:
    """Returns the seconds of a convolution of `flops` operations, forward or backward; None if it has one group."""
    if not (arguments.has(operator, "groups") and arguments.has(operator, "transposed")):
        return None
    groups = arguments.given(operator, "groups", args, kwargs)
    if groups == 1:
        return None
    weight = arguments.given(operator, "weight", args, kwargs)
    inputs, per_group = _channels(weight, arguments.given(operator, "transposed", args, kwargs), groups)
    if inputs == 1:
        return flops / achieved_rates.rate(spec, "float64" if precision == "float64" else "float32")
    tile = rates.SIMT_TILE if precision in ("float32", "float64") else rates.CONVOLUTION_TILE
    rate = achieved_rates.rate(spec, precision)
    if operator._schema.name != "aten::convolution_backward":
        return flops / (rate * _filled(per_group, tile))
    shares = (
        _filled(inputs, tile),
        _filled(per_group, tile) * _filled(inputs * prod(weight.shape[2:]), tile),
    )
    wanted = [share for share, one in zip(shares, outputs[:2], strict=True) if one is not None]
    return sum(flops / len(wanted) / (rate * share) for share in wanted)


# Estimates the layout conversions that cuDNN adds to a convolution of contiguous images on Tensor Cores.
# cuDNN's kernels for Tensor Cores need channels last. Contiguous images (N × C × H × W) are transposed before and the
# results after, each in a kernel that reads and writes the tensor once (NVIDIA, Convolutional Layers User's Guide,
# "Tensor Layouts In Memory: NCHW vs NHWC").
# Five cases need no transposition. A convolution with kernels of one pixel and stride 1 is a matmul of the weight and
# each image's channels-by-pixels matrix (the published rows of timm's contiguous table for the RTX 4090 agree with
# that, and are no test of it). Depthwise convolutions use no Tensor Cores. With torch.backends.cudnn.enabled = False,
# PyTorch's own kernels accept images as they are. In compiled models, inductor converts convolutions to channels last
# (torch/_inductor/graph.py, decide_layout_opt). For Conv1d and Conv3d no published time was available.

TENSOR_CORES = ("float16", "bfloat16", "tf32")


def changed(operator, args, kwargs, outputs, precision: str) -> list[torch.Tensor]:
    """Returns the tensors that are transposed around a convolution, forward or backward; [] for other operators."""
    if precision not in TENSOR_CORES or not torch.backends.cudnn.enabled:
        return []
    if not (arguments.has(operator, "groups") and arguments.has(operator, "transposed")):
        return []
    images = arguments.given(operator, "input", args, kwargs)
    weight = arguments.given(operator, "weight", args, kwargs)
    groups = arguments.given(operator, "groups", args, kwargs)
    backward = operator._schema.name == "aten::convolution_backward"
    gradient = arguments.given(operator, "grad_output", args, kwargs) if backward else outputs[0]
    depthwise = groups == images.shape[1] > 1
    if depthwise or _is_a_product(operator, args, kwargs, weight, groups):
        return []
    # a weight in channels last makes the result channels last too
    if not (_contiguous(images) and _contiguous(gradient)):
        return []
    if not backward:
        return [images, weight, gradient]
    of_images, of_weight = outputs[:2]
    found = [gradient, weight, of_images] if of_images is not None else []
    return found + ([gradient, images, of_weight] if of_weight is not None else [])


def _is_a_product(operator, args, kwargs, weight: torch.Tensor, groups: int) -> bool:
    """Returns whether the kernels have one pixel, and each pixel of the images gives one of the result."""
    given = (arguments.given(operator, name, args, kwargs) for name in ("stride", "padding"))
    stride, padding = map(set, given)
    return groups == 1 and weight.shape[2:].numel() == 1 and stride == {1} and padding == {0}


def _contiguous(images: torch.Tensor) -> bool:
    """Returns whether images are contiguous, and not also channels last (as with one channel or one pixel)."""
    if images.ndim != 4:
        return False
    return images.is_contiguous() and not images.is_contiguous(memory_format=torch.channels_last)


# Counts the bytes that sorting and selecting move, because their kernels pass over memory several times.
# Sorting (aten/src/ATen/native/cuda/SortStable.cu) is CUB's radix sort, with 8 bits of the key per pass. Each pass
# reads and writes keys and indices, after one pass that counts digits (CCCL,
# cub/device/dispatch/tuning/tuning_radix_sort.cuh, ONESWEEP_RADIX_BITS). In segmented sorts each pass reads twice,
# and rows that are sorted in shared memory are read and written once. The largest k of long rows (TensorTopK.cu,
# mbtopk) need a pass per 8 bits, and one that gathers. `kthvalue` and `median` along a dim (SortingRadixSelect.cuh,
# RADIX_BITS) need a pass per 2 bits, and two that count and find. There, one block on one multiprocessor processes a
# row, so it reaches only its share of the bandwidth.

INDEX = 8


def _rows(tensor: torch.Tensor, dim: int) -> tuple[int, int]:
    """Returns the number of rows along a dim, and their length."""
    length = tensor.shape[dim] if tensor.dim() else 1
    return (tensor.numel() // length if length else 0), length


def _sorted(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    count, key = tensor.numel(), tensor.element_size()
    pair = key + INDEX
    if length <= SHORT or not count:
        return 2 * count * pair
    if rows == 1 or length >= LARGE_SEGMENT:
        return count * (INDEX + key + 2 * key * pair)
    if rows < FEW_SEGMENTS:
        by_row = 2 * INDEX * ceil(log2(rows) / 8)
        return count * (INDEX + key + 2 * key * pair + INDEX + by_row + INDEX + key + pair)
    return count * (INDEX + 3 * key * pair)


def _largest(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    passes = tensor.element_size() + 1 if by_many_blocks(rows, length) else 1
    return passes * tensor.nbytes


def _one_of_each_row(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    passes = 4 * tensor.element_size() + 2 if length > SHORT else 1
    return passes * tensor.nbytes * spec.multiprocessors // max(1, min(rows, spec.multiprocessors))


_ALONG_A_DIM = {"sort": _sorted, "topk": _largest, "kthvalue": _one_of_each_row, "median": _one_of_each_row}
_ALONG_A_DIM["nanmedian"] = _one_of_each_row
OPERATORS = {*_ALONG_A_DIM, "randperm"}
"""The operators whose bytes `moved` counts."""


def moved(spec: Spec, name: str, operator, args, kwargs, outputs) -> int:
    """Returns the bytes that take as long to move as the kernels of a call of one of `OPERATORS`, with its outputs."""
    results = sum(one.nbytes for one in outputs if isinstance(one, torch.Tensor))
    if name == "randperm":
        n, element = outputs[0].numel(), outputs[0].element_size()
        if not n:
            return 0
        bits = bits_of_permutation(n)
        key = 4 if bits <= 32 else 8
        return n * (element + 3 * key + 2 * ceil(bits / 8) * (key + element))
    tensor = arguments.given(operator, "self", args, kwargs)
    dim = arguments.given(operator, "dim", args, kwargs) if arguments.has(operator, "dim") else -1
    found = _ALONG_A_DIM[name](spec, tensor, dim)
    return found if name == "sort" else found + results
