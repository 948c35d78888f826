"""Rules for sorting, selecting the largest, cumulative sums, and sampling."""

from math import ceil, log, log2

import torch

from simgpu.errors import NoValueError
from simgpu.kernels import cub
from simgpu.kernels.launch import Launch, made_of_others, rule
from simgpu.kernels.reduction_scratch import accumulator_of, reduce, reduce_all
from simgpu.kernels.scalar_types import name
from simgpu.tensors import scalars
from simgpu.tensors.overlaps import refuse_within

SHORT = 4096  # rows up to this length are sorted in place: aten/src/ATen/native/cuda/Sort.h, should_use_small_sort
LARGE_SEGMENT = 1_000_000  # rows from this length on are sorted one by one: SortStable.cu
FEW_SEGMENTS = 128  # fewer rows are sorted together, and then by row
HALVES = (torch.float16, torch.bfloat16)


def _dim(launch: Launch) -> int:
    """Returns the dim that an operator works along, not negative."""
    return launch["dim"] % max(launch["self"].dim(), 1)


@rule("sort.default", "sort.stable")
def sort(launch: Launch) -> None:
    """Rule of sort: the outputs, then the scratch of sorting (Sort.cpp)."""
    values, indices = launch.outputs
    launch.give(values, indices)
    sort_along(launch, launch["self"], _dim(launch), values)


def sort_along(launch: Launch, tensor, dim: int, values) -> None:
    """Allocates as sort_cuda_kernel, for outputs with the layout of `values` (aten/src/ATen/native/cuda/Sort.cpp)."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    length = tensor.shape[dim]
    if length <= SHORT:
        launch.release(launch.scratch(8 * length))  # 0, 1, 2, ...
        return
    held = []
    strides = tensor.stride()
    if not (torch.ops.aten.is_non_overlapping_and_dense.default(tensor) and strides[dim] == 1):
        strides = _dense_with_last(tensor, dim)
        held.append(launch.scratch_like(tensor))
    if values.stride() != strides:
        held.append(launch.scratch_like(tensor))
        held.append(launch.scratch_like(tensor, torch.int64))
    _sort_rows(launch, tensor.numel(), length, tensor.element_size())
    launch.release(*reversed(held))


def sort_one_row(launch: Launch, n: int, element: int) -> None:
    """Allocates the scratch of sorting one row of n elements of `element` bytes."""
    if n <= SHORT:
        launch.release(launch.scratch(8 * n))  # 0, 1, 2, ...
    else:
        _sort_rows(launch, n, n, element)


def _dense_with_last(tensor, dim: int) -> tuple[int, ...]:
    """Returns dense strides in the order of the tensor's own, with `dim` the fastest.

    (Sorting.cpp, infer_dense_strides_dim_last)
    """
    strides = [-1 if i == dim else stride for i, stride in enumerate(tensor.stride())]
    order = sorted(range(tensor.dim()), key=lambda i: -strides[i])
    dense, step = [0] * tensor.dim(), 1
    for i in reversed(order):
        dense[i] = step
        step *= tensor.shape[i]
    return tuple(dense)


def _sort_rows(launch: Launch, count: int, length: int, key: int) -> None:
    """Allocates as launch_stable_sort_kernel for `count` keys in rows of `length`.

    (aten/src/ATen/native/cuda/SortStable.cu)
    """
    spec = launch.machine.spec
    most = min(count, 2**31 - 1) // length * length
    for start in range(0, count, most):
        n = min(count - start, most)
        rows = n // length
        if rows == 1 or length >= LARGE_SEGMENT:
            ramp = launch.scratch(8 * length)
            for _ in range(rows):
                launch.release(launch.scratch(cub.radix_sort(length, key, 8, spec)))
            launch.release(ramp)
        elif rows < FEW_SEGMENTS:
            places = launch.scratch(8 * n), launch.scratch(8 * n)  # (row, index) of each key, twice
            keys = launch.scratch(n * key)
            launch.release(launch.scratch(cub.radix_sort(n, key, 8, spec)), keys)
            launch.release(launch.scratch(cub.radix_sort(n, 8, 0, spec, max(1, ceil(log2(rows))))))
            launch.release(*reversed(places))
        else:
            ramp = launch.scratch(8 * n)
            launch.release(launch.scratch(cub.segmented_sort(n, key, 8)), ramp)


@rule("topk.default")
def topk(launch: Launch) -> None:
    """Rule of topk (aten/src/ATen/native/cuda/TensorTopK.cpp)."""
    values, indices = launch.outputs
    launch.give(values, indices)
    _topk(launch, launch["self"], _dim(launch), values, launch["sorted"])


def _topk(launch: Launch, tensor, dim: int, values, is_sorted: bool) -> None:
    if values.numel() == 0:
        return
    copies = launch.contiguous(tensor)
    length = tensor.shape[dim] if tensor.dim() else 1
    if by_many_blocks(tensor.numel() // length, length):
        _select(launch, tensor.numel() // length, length, tensor.element_size())
    launch.release(*copies)
    if is_sorted and values.numel() > 1 and values.shape[dim] > SHORT:
        order = launch.scratch_like(values, torch.int64)
        ordered = launch.scratch_like(values)
        sort_along(launch, values, dim, values)
        launch.release(launch.scratch_like(values, torch.int64))
        launch.release(ordered, order)


def by_many_blocks(rows: int, length: int) -> bool:
    """Returns whether a row is processed by more than one thread block (TensorTopK.cu, should_use_multiblock)."""
    limits = (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800)
    return length >= next((enough for most, enough in limits if rows <= most), 400)


def _select(launch: Launch, rows: int, length: int, element: int) -> None:
    """Allocates as mbtopk::launch: digit counts per block of 256 threads, with 4 to 64 items per thread
    (TensorTopK.cu).
    """
    spec = launch.machine.spec
    fitting = 65536 // (40 * 256)  # blocks per multiprocessor, limited by the registers per thread
    items = max(4, min(ceil(rows * length / (spec.multiprocessors * fitting * 256)), 64))
    blocks = rows * ceil(length / (256 * items))
    digit = max(4, element)
    sizes = rows * element, 8 * rows, 2 * rows * digit, blocks * 512, rows * 1024, 4 * blocks, 4 * blocks
    held = [launch.scratch(size) for size in sizes]
    for _ in range(2):
        launch.release(launch.scratch(cub.scan_by_key(blocks, 4, spec)))
    launch.release(*reversed(held))


@rule("cumsum.default", "cumprod.default", "logcumsumexp.default", "_logcumsumexp.out")
def cumulative(launch: Launch) -> None:
    """Rule of cumulative sums: one row uses CUB, several do not (aten/src/ATen/native/cuda/ScanKernels.cpp,
    ScanUtils.cuh).

    A scalar is filled with itself, in place with a copy (aten/src/ATen/native/ReduceOps.cpp, impl_func_cum_ops).
    """
    (output,) = launch.outputs
    launch.give(output)
    tensor, dim = launch["self", "dim"]
    if tensor.numel() == 0:
        return
    if tensor.dim() == 0:
        if launch.operator._opname.endswith("_"):
            launch.scratch_like(tensor)
        return
    if tensor.dtype != output.dtype:
        launch.scratch_like(tensor, output.dtype)
        tensor = torch.empty_like(tensor, dtype=output.dtype)
    launch.contiguous(output, tensor)
    if tensor.numel() == tensor.shape[dim]:
        _scan(launch, tensor.numel(), output.dtype)
    refuse_within(output)  # the copy_ back refuses it


@rule("cummax.default", "cummin.default", "_cummax_helper.default", "_cummin_helper.default")
def cumulative_extremes(launch: Launch) -> None:
    """Rule of cummax_helper_cuda: a copy of an input that is not contiguous (ScanKernels.cpp)."""
    launch.give(*launch.outputs)
    launch.contiguous(launch["self"])


def _scan(launch: Launch, n: int, dtype: torch.dtype) -> None:
    """Allocates the scratch of accumulating one row."""
    foreign = dtype in HALVES or dtype.is_complex
    launch.release(launch.scratch(cub.scan(n, dtype.itemsize, foreign=foreign)))


def bits_of_permutation(n: int) -> int:
    """Returns the bits of random numbers to sort by for a permutation of n, so that few are equal (Randperm.cu)."""
    return min(64, ceil(log2(n - (6 * n * n + 1) / (log(0.9) * 12))))


@rule("randperm.default", "randperm.generator")
def randperm(launch: Launch) -> None:
    """Rule of randperm: random numbers are drawn and sorted (aten/src/ATen/native/cuda/Randperm.cu).

    They have enough bits that few are equal.
    """
    (output,) = launch.outputs
    launch.give(output)
    _check_fits(launch, output.dtype)
    _draw_and_sort(launch, output)


@rule("randperm.generator_out", only=True)
def randperm_into(launch: Launch) -> None:
    """Rule of randperm_out_cuda: checks before the tensor is resized, and a copy of one that is not contiguous.

    (aten/src/ATen/native/cuda/Randperm.cu)
    """
    (output,) = launch.outputs
    _check_fits(launch, output.dtype)
    launch.give(output)
    _draw_and_sort(launch, output)


EXACT = {
    torch.float16: (11, "2049", "Half"),
    torch.float32: (24, "2^24+1", "Float"),
    torch.float64: (53, "2^53+1", "Double"),
}


def _check_fits(launch: Launch, dtype: torch.dtype) -> None:
    """Checks that a dtype represents all integers below n exactly, after allocating a tensor of the largest.

    (aten/src/ATen/native/TensorFactories.h, check_supported_max_int_with_precision)
    """
    n = launch["n"]
    block = launch.scratch(dtype.itemsize)
    scalars.refuse(max(n - 1, 0), dtype)
    launch.release(block)
    bits, limit, said = EXACT.get(dtype, (63, "", ""))
    if n > (1 << bits) + 1:
        raise RuntimeError(f"n cannot be greater than {limit} for {said} type.")


def _draw_and_sort(launch: Launch, output: torch.Tensor) -> None:
    n, element = output.numel(), output.element_size()
    if n == 0:
        return
    launch.scratch(n * element)  # 0, 1, 2, ...
    launch.contiguous(output)
    bits = bits_of_permutation(n)
    key = 4 if bits <= 32 else 8
    launch.scratch(n * key)
    launch.scratch(n * key)
    launch.scratch(cub.radix_sort(n, key, element, launch.machine.spec, bits))


@rule("multinomial.default")
def multinomial(launch: Launch) -> None:
    """Rule of multinomial: checks, and the maxima of probabilities divided by random numbers.

    (aten/src/ATen/native/Distributions.cpp; with replacement cuda/MultinomialKernel.cu)
    """
    (output,) = launch.outputs
    tensor, samples = launch["self", "num_samples"]
    if not tensor.is_floating_point():
        found = name(tensor.dtype)
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {found}")
    launch.give(output)
    if output.numel() == 0:
        return
    if launch["replacement"] and samples > 1:
        for _ in range(3):
            launch.scratch_like(tensor)
        if tensor.numel() == tensor.shape[-1]:
            _scan(launch, tensor.numel(), tensor.dtype)
        return
    element, one = tensor.element_size(), 1
    extremes, compared = [], []
    together = launch.machine.torch_version >= (2, 12)  # the smallest and the largest; before, one after the other
    for found in (2,) if together else (1, 1):
        extremes += [launch.scratch(element) for _ in range(found)]
        copy = launch.contiguous(tensor)
        reduce_all(launch, tensor.numel(), tensor.dtype, found * element)
        launch.release(*copy)
        compared += [launch.scratch(one) for _ in range(found)]
    held = [launch.scratch(one)]
    if together:
        launch.release(*reversed(compared))
    else:
        launch.release(compared[1], extremes[1], compared[0], extremes[0])
    rows = tensor.shape[0] if tensor.dim() == 2 else 1
    sums = launch.scratch(rows * element)
    reduce(launch, tensor, [-1], accumulator_of(tensor.dtype), element)
    zeros = launch.scratch(rows)
    if tensor.dim() == 2:
        held.append(launch.scratch(one))
        reduce_all(launch, rows, torch.bool, one)
        launch.release(zeros)
    else:
        held.append(zeros)
    launch.release(sums)
    launch.release(launch.scratch(one))
    noise = torch.empty_like(tensor)
    held.append(launch.scratch_like(noise))
    if samples == 1:
        reduce(launch, noise, [-1], 16, 8)
    else:
        values = torch.empty(output.shape, dtype=tensor.dtype, device="meta")
        held.append(launch.scratch_like(values))
        _topk(launch, noise, noise.dim() - 1, values, True)
    launch.release(*reversed(held))
    if together:
        launch.release(*extremes)  # of one tuple, which frees the first one first


@made_of_others("median.default")
def median(tensor):
    """Decomposes median_impl: sorts everything, and the last element shows whether there are NaNs.

    (aten/src/ATen/native/cuda/Sorting.cpp)
    """
    if tensor.numel() == 0:
        return _no_median(tensor)
    ordered = _ordered(tensor)
    return torch.where(ordered[-1].isnan(), ordered[-1], ordered[(tensor.numel() - 1) // 2])


@made_of_others("nanmedian.default")
def nanmedian(tensor):
    """Decomposes nanmedian in the same way, where the middle of the other elements is counted."""
    if tensor.numel() == 0:
        return _no_median(tensor)
    ordered = _ordered(tensor)
    are_nan = ordered.isnan()
    count = are_nan.sum()
    left = torch.rsub(count, tensor.numel() - 1)
    half = torch.div(left, 2)
    middle = half.to(torch.int64)
    del half, left, count, are_nan
    result = torch.ops.aten.index.Tensor(ordered, [middle])
    del middle
    return result


def _ordered(tensor):
    flat = tensor.flatten()
    ordered = flat.sort()[0]
    del flat
    return ordered


def _no_median(tensor):
    """Returns NaN, which is made on the host and converted."""
    made = torch.full((), float("nan"), device="cpu")
    return torch.ops.aten._to_copy.default(made, dtype=tensor.dtype, device=tensor.device)


@rule("median.dim", "nanmedian.dim", "kthvalue.default")
def along_a_dim(launch: Launch) -> None:
    """Rule of median_with_indices_impl and kthvalue_out_cuda, which read a contiguous tensor.

    (aten/src/ATen/native/cuda/Sorting.cpp)
    """
    launch.contiguous(launch["self"])
    launch.give(*launch.outputs)


FUSED_MODE = 2048  # the longest rows whose mode one thread block finds: TensorModeKernel.cpp


@rule("mode.default", "mode.values")
def mode(launch: Launch) -> None:
    """Rule of mode: rows are read one after the other (aten/src/ATen/native/cuda/TensorModeKernel.cpp).

    Long ones are sorted and counted, in memory that depends on how many of their elements differ.
    """
    launch.give(*launch.outputs)
    tensor = launch["self"]
    if tensor.dim() == 0 or tensor.numel() < 2:
        return
    length = tensor.shape[_dim(launch)]
    if length == 1:
        return
    if length > FUSED_MODE:
        raise NoValueError(
            f"mode() of rows of {length} elements takes memory that follows from how many of them differ, and a "
            f"simulated tensor has no values. Rows of up to {FUSED_MODE} elements need none."
        )
    launch.contiguous(tensor.transpose(_dim(launch), -1))
