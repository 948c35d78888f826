"""Rules for sorting, searching in sorted values, and finding distinct ones."""

from math import ceil, log, log2

import torch

from simgpu.checks import number_ranges
from simgpu.checks.overlaps import refuse_within
from simgpu.checks.scalar_types import name
from simgpu.errors import NoValueError
from simgpu.op_info.inplace_out_variants import resized
from simgpu.ops import cub
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reductions import accumulator_of, reduce, reduce_all

# Rules for sorting, selecting the largest, cumulative sums, and sampling.

SHORT = 4096  # rows up to this length are sorted in place: aten/src/ATen/native/cuda/Sort.h, should_use_small_sort
LARGE_SEGMENT = 1_000_000  # rows from this length on are sorted one by one: SortStable.cu
FEW_SEGMENTS = 128  # fewer rows are sorted together, and then by row
HALVES = (torch.float16, torch.bfloat16)


def _dim(call: OpCall) -> int:
    """Returns the dim that an operator works along, not negative."""
    return call["dim"] % max(call["self"].dim(), 1)


@rule("sort.default", "sort.stable")
def sort(call: OpCall) -> None:
    """Rule of sort: the outputs, then the scratch of sorting (Sort.cpp)."""
    values, indices = call.outputs
    call.allocate_outputs(values, indices)
    sort_along(call, call["self"], _dim(call), values)


def sort_along(call: OpCall, tensor, dim: int, values) -> None:
    """Allocates as sort_cuda_kernel, for outputs with the layout of `values` (aten/src/ATen/native/cuda/Sort.cpp)."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    length = tensor.shape[dim]
    if length <= SHORT:
        call.release(call.scratch(8 * length))  # 0, 1, 2, ...
        return
    held = []
    strides = tensor.stride()
    if not (torch.ops.aten.is_non_overlapping_and_dense.default(tensor) and strides[dim] == 1):
        strides = _dense_with_last(tensor, dim)
        held.append(call.scratch_like(tensor))
    if values.stride() != strides:
        held.append(call.scratch_like(tensor))
        held.append(call.scratch_like(tensor, torch.int64))
    _sort_rows(call, tensor.numel(), length, tensor.element_size())
    call.release(*reversed(held))


def sort_one_row(call: OpCall, n: int, element: int) -> None:
    """Allocates the scratch of sorting one row of n elements of `element` bytes."""
    if n <= SHORT:
        call.release(call.scratch(8 * n))  # 0, 1, 2, ...
    else:
        _sort_rows(call, n, n, element)


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


def _sort_rows(call: OpCall, count: int, length: int, key: int) -> None:
    """Allocates as launch_stable_sort_kernel for `count` keys in rows of `length`.

    (aten/src/ATen/native/cuda/SortStable.cu)
    """
    spec = call.machine.spec
    most = min(count, 2**31 - 1) // length * length
    for start in range(0, count, most):
        n = min(count - start, most)
        rows = n // length
        if rows == 1 or length >= LARGE_SEGMENT:
            ramp = call.scratch(8 * length)
            for _ in range(rows):
                call.release(call.scratch(cub.radix_sort(length, key, 8, spec)))
            call.release(ramp)
        elif rows < FEW_SEGMENTS:
            places = call.scratch(8 * n), call.scratch(8 * n)  # (row, index) of each key, twice
            keys = call.scratch(n * key)
            call.release(call.scratch(cub.radix_sort(n, key, 8, spec)), keys)
            call.release(call.scratch(cub.radix_sort(n, 8, 0, spec, max(1, ceil(log2(rows))))))
            call.release(*reversed(places))
        else:
            ramp = call.scratch(8 * n)
            call.release(call.scratch(cub.segmented_sort(n, key, 8)), ramp)


@rule("topk.default")
def topk(call: OpCall) -> None:
    """Rule of topk (aten/src/ATen/native/cuda/TensorTopK.cpp)."""
    values, indices = call.outputs
    call.allocate_outputs(values, indices)
    _topk(call, call["self"], _dim(call), values, call["sorted"])


def _topk(call: OpCall, tensor, dim: int, values, is_sorted: bool) -> None:
    if values.numel() == 0:
        return
    copies = call.contiguous(tensor)
    length = tensor.shape[dim] if tensor.dim() else 1
    if by_many_blocks(tensor.numel() // length, length):
        _select(call, tensor.numel() // length, length, tensor.element_size())
    call.release(*copies)
    if is_sorted and values.numel() > 1 and values.shape[dim] > SHORT:
        order = call.scratch_like(values, torch.int64)
        ordered = call.scratch_like(values)
        sort_along(call, values, dim, values)
        call.release(call.scratch_like(values, torch.int64))
        call.release(ordered, order)


def by_many_blocks(rows: int, length: int) -> bool:
    """Returns whether a row is processed by more than one thread block (TensorTopK.cu, should_use_multiblock)."""
    limits = (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800)
    return length >= next((enough for most, enough in limits if rows <= most), 400)


def _select(call: OpCall, rows: int, length: int, element: int) -> None:
    """Allocates as mbtopk::call: digit counts per block of 256 threads, with 4 to 64 items per thread
    (TensorTopK.cu).
    """
    spec = call.machine.spec
    fitting = 65536 // (40 * 256)  # blocks per multiprocessor, limited by the registers per thread
    items = max(4, min(ceil(rows * length / (spec.multiprocessors * fitting * 256)), 64))
    blocks = rows * ceil(length / (256 * items))
    digit = max(4, element)
    sizes = rows * element, 8 * rows, 2 * rows * digit, blocks * 512, rows * 1024, 4 * blocks, 4 * blocks
    held = [call.scratch(size) for size in sizes]
    for _ in range(2):
        call.release(call.scratch(cub.scan_by_key(blocks, 4, spec)))
    call.release(*reversed(held))


@rule("cumsum.default", "cumprod.default", "logcumsumexp.default", "_logcumsumexp.out")
def cumulative(call: OpCall) -> None:
    """Rule of cumulative sums: one row uses CUB, several do not (aten/src/ATen/native/cuda/ScanKernels.cpp,
    ScanUtils.cuh).

    A scalar is filled with itself, in place with a copy (aten/src/ATen/native/ReduceOps.cpp, impl_func_cum_ops).
    """
    output = call.allocate_output()
    tensor, dim = call["self", "dim"]
    if tensor.numel() == 0:
        return
    if tensor.dim() == 0:
        if call.operator._opname.endswith("_"):
            call.scratch_like(tensor)
        return
    if tensor.dtype != output.dtype:
        call.scratch_like(tensor, output.dtype)
        tensor = torch.empty_like(tensor, dtype=output.dtype)
    call.contiguous(output, tensor)
    if tensor.numel() == tensor.shape[dim]:
        _scan(call, tensor.numel(), output.dtype)
    refuse_within(output)  # the copy_ back refuses it


@rule("cummax.default", "cummin.default", "_cummax_helper.default", "_cummin_helper.default")
def cumulative_extremes(call: OpCall) -> None:
    """Rule of cummax_helper_cuda: a copy of an input that is not contiguous (ScanKernels.cpp)."""
    call.allocate_outputs(*call.outputs)
    call.contiguous(call["self"])


def _scan(call: OpCall, n: int, dtype: torch.dtype) -> None:
    """Allocates the scratch of accumulating one row."""
    foreign = dtype in HALVES or dtype.is_complex
    call.release(call.scratch(cub.scan(n, dtype.itemsize, foreign=foreign)))


def bits_of_permutation(n: int) -> int:
    """Returns the bits of random numbers to sort by for a permutation of n, so that few are equal (Randperm.cu)."""
    return min(64, ceil(log2(n - (6 * n * n + 1) / (log(0.9) * 12))))


@rule("randperm.default", "randperm.generator")
def randperm(call: OpCall) -> None:
    """Rule of randperm: random numbers are drawn and sorted (aten/src/ATen/native/cuda/Randperm.cu).

    They have enough bits that few are equal.
    """
    output = call.allocate_output()
    _check_fits(call, output.dtype)
    _draw_and_sort(call, output)


@rule("randperm.generator_out", only=True)
def randperm_into(call: OpCall) -> None:
    """Rule of randperm_out_cuda: checks before the tensor is resized, and a copy of one that is not contiguous.

    (aten/src/ATen/native/cuda/Randperm.cu)
    """
    (output,) = call.outputs
    _check_fits(call, output.dtype)
    call.allocate_outputs(output)
    _draw_and_sort(call, output)


EXACT = {
    torch.float16: (11, "2049", "Half"),
    torch.float32: (24, "2^24+1", "Float"),
    torch.float64: (53, "2^53+1", "Double"),
}


def _check_fits(call: OpCall, dtype: torch.dtype) -> None:
    """Checks that a dtype represents all integers below n exactly, after allocating a tensor of the largest.

    (aten/src/ATen/native/TensorFactories.h, check_supported_max_int_with_precision)
    """
    n = call["n"]
    block = call.scratch(dtype.itemsize)
    number_ranges.refuse(max(n - 1, 0), dtype)
    call.release(block)
    bits, limit, said = EXACT.get(dtype, (63, "", ""))
    if n > (1 << bits) + 1:
        raise RuntimeError(f"n cannot be greater than {limit} for {said} type.")


def _draw_and_sort(call: OpCall, output: torch.Tensor) -> None:
    n, element = output.numel(), output.element_size()
    if n == 0:
        return
    call.scratch(n * element)  # 0, 1, 2, ...
    call.contiguous(output)
    bits = bits_of_permutation(n)
    key = 4 if bits <= 32 else 8
    call.scratch(n * key)
    call.scratch(n * key)
    call.scratch(cub.radix_sort(n, key, element, call.machine.spec, bits))


@rule("multinomial.default")
def multinomial(call: OpCall) -> None:
    """Rule of multinomial: checks, and the maxima of probabilities divided by random numbers.

    (aten/src/ATen/native/Distributions.cpp; with replacement cuda/MultinomialKernel.cu)
    """
    (output,) = call.outputs
    tensor, samples = call["self", "num_samples"]
    if not tensor.is_floating_point():
        found = name(tensor.dtype)
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {found}")
    call.allocate_outputs(output)
    if output.numel() == 0:
        return
    if call["replacement"] and samples > 1:
        for _ in range(3):
            call.scratch_like(tensor)
        if tensor.numel() == tensor.shape[-1]:
            _scan(call, tensor.numel(), tensor.dtype)
        return
    element, one = tensor.element_size(), 1
    extremes, compared = [], []
    together = call.machine.torch_version >= (2, 12)  # the smallest and the largest; before, one after the other
    for found in (2,) if together else (1, 1):
        extremes += [call.scratch(element) for _ in range(found)]
        copy = call.contiguous(tensor)
        reduce_all(call, tensor.numel(), tensor.dtype, found * element)
        call.release(*copy)
        compared += [call.scratch(one) for _ in range(found)]
    held = [call.scratch(one)]
    if together:
        call.release(*reversed(compared))
    else:
        call.release(compared[1], extremes[1], compared[0], extremes[0])
    rows = tensor.shape[0] if tensor.dim() == 2 else 1
    sums = call.scratch(rows * element)
    reduce(call, tensor, [-1], accumulator_of(tensor.dtype), element)
    zeros = call.scratch(rows)
    if tensor.dim() == 2:
        held.append(call.scratch(one))
        reduce_all(call, rows, torch.bool, one)
        call.release(zeros)
    else:
        held.append(zeros)
    call.release(sums)
    call.release(call.scratch(one))
    noise = torch.empty_like(tensor)
    held.append(call.scratch_like(noise))
    if samples == 1:
        reduce(call, noise, [-1], 16, 8)
    else:
        values = torch.empty(output.shape, dtype=tensor.dtype, device="meta")
        held.append(call.scratch_like(values))
        _topk(call, noise, noise.dim() - 1, values, True)
    call.release(*reversed(held))
    if together:
        call.release(*extremes)  # of one tuple, which frees the first one first


@decomposition("median.default")
def median(tensor):
    """Decomposes median_impl: sorts everything, and the last element shows whether there are NaNs.

    (aten/src/ATen/native/cuda/Sorting.cpp)
    """
    if tensor.numel() == 0:
        return _no_median(tensor)
    ordered = _ordered(tensor)
    return torch.where(ordered[-1].isnan(), ordered[-1], ordered[(tensor.numel() - 1) // 2])


@decomposition("nanmedian.default")
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
def along_a_dim(call: OpCall) -> None:
    """Rule of median_with_indices_impl and kthvalue_out_cuda, which read a contiguous tensor.

    (aten/src/ATen/native/cuda/Sorting.cpp)
    """
    call.contiguous(call["self"])
    call.allocate_outputs(*call.outputs)


FUSED_MODE = 2048  # the longest rows whose mode one thread block finds: TensorModeKernel.cpp


@rule("mode.default", "mode.values")
def mode(call: OpCall) -> None:
    """Rule of mode: rows are read one after the other (aten/src/ATen/native/cuda/TensorModeKernel.cpp).

    Long ones are sorted and counted, in memory that depends on how many of their elements differ.
    """
    call.allocate_outputs(*call.outputs)
    tensor = call["self"]
    if tensor.dim() == 0 or tensor.numel() < 2:
        return
    length = tensor.shape[_dim(call)]
    if length == 1:
        return
    if length > FUSED_MODE:
        raise NoValueError(
            f"mode() of rows of {length} elements takes memory that follows from how many of them differ, and a "
            f"simulated tensor has no values. Rows of up to {FUSED_MODE} elements need none."
        )
    call.contiguous(tensor.transpose(_dim(call), -1))


# Rules for searching: sorted boundaries, histograms, membership, nonzero elements.

TILE = 512 * 16  # elements per thread block and turn: Nonzero.cu, nonzero_static_cuda_out_impl


@rule("searchsorted.Tensor", "searchsorted.Tensor_out", "searchsorted.Scalar", "searchsorted.Scalar_out")
@rule("bucketize.Tensor", "bucketize.Tensor_out", "bucketize.Scalar", "bucketize.Scalar_out")
def searchsorted(call: OpCall) -> None:
    """Rule of searchsorted: a number becomes a tensor on the device, and operands are made contiguous and of one dtype.

    (aten/src/ATen/native/cuda/Bucketization.cu, BucketizationUtils.h)
    """
    boundaries = call.get("sorted_sequence", None)
    boundaries = call["boundaries"] if boundaries is None else boundaries
    searched, sorter = call["self"], call.get("sorter")
    common = torch.result_type(boundaries, searched)
    if not isinstance(searched, torch.Tensor):
        searched = torch.tensor(searched, dtype=torch.float64 if isinstance(searched, float) else None, device="meta")
        call.scratch_like(searched)
    if sorter is not None and sorter.numel():
        _check_range(call, sorter)
    call.allocate_outputs(*call.outputs)
    if searched.numel() == 0:
        return
    given = [searched, boundaries, sorter]
    copies = call.contiguous(*given)
    for place, tensor in enumerate(given[:2]):
        if tensor.dtype != common:
            copy, copies[place] = copies[place], call.scratch_like(tensor, common)
            call.release(copy)
    call.release(*reversed(copies))


def _check_range(call: OpCall, indices: torch.Tensor) -> None:
    """Allocates the smallest and the largest of indices, which the host compares with the size that they index."""
    call.release(*reversed(_extremes(call, indices)))


def _extremes(call: OpCall, tensor: torch.Tensor, since: tuple[int, int] = (2, 0), before: int = 2) -> tuple:
    """Allocates aminmax of all of a tensor; returns the blocks of the extremes, which the caller frees.

    Before torch `since` they are found one after the other, and the host reads each, so that no block remains. `before`
    is the number of them.
    """
    together = call.machine.torch_version >= since
    element = tensor.element_size()
    for wanted in (2,) if together else (1,) * before:
        found = tuple(call.scratch(element) for _ in range(wanted))
        copy = call.contiguous(tensor)
        reduce(call, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), None, wanted * element, element)
        call.release(*copy)
        if together:
            return found
        call.release(*found)
    return ()


@decomposition("histc.out")
def histc_into(tensor, bins=100, min=0, max=0, *, out):
    """Decomposes _histc_out_cuda: a separate result, which is copied (aten/src/ATen/native/cuda/SummaryOps.cu)."""
    return resized(out, torch.ops.aten.histc.default(tensor, bins, min, max))


@rule("histc.default", only=True)
def histc(call: OpCall) -> None:
    """Rule of _histc_cuda_template: without a given range, the values' extremes (SummaryOps.cu)."""
    call.allocate_outputs(*call.outputs)
    tensor, least, most = call["self", "min", "max"]
    if least != most or tensor.numel() == 0:
        return
    call.release(*_extremes(call, tensor, since=(2, 12)))


@rule("bincount.default", only=True)
def bincount(call: OpCall) -> None:
    """Rule of _bincount_cuda (aten/src/ATen/native/cuda/SummaryOps.cu).

    It converts weights that are neither float32 nor float64 to float64, finds the smallest and the largest value, which
    the host reads, and then allocates the counts while it still holds all of these.
    """
    tensor, weights = call["self"], call.get("weights")
    if tensor.numel() == 0:
        return call.allocate_outputs(*call.outputs)
    floats = torch.float32, torch.float64
    as_double = None if weights is None or weights.dtype in floats else call.scratch_like(weights, torch.float64)
    extremes = _extremes(call, tensor, since=(2, 13), before=1 if tensor.dtype == torch.uint8 else 2)
    call.allocate_outputs(*call.outputs)
    call.release(*extremes, as_double)


@rule("nonzero_static.default", "nonzero_static.out")
def nonzero_static(call: OpCall) -> None:
    """Rule of nonzero_static_cuda_out_impl: counts per thread block, and their sums
    (aten/src/ATen/native/cuda/Nonzero.cu).

    There are at most as many blocks as multiprocessors.
    """
    call.allocate_outputs(*call.outputs)
    tensor, size = call["self", "size"]
    if size == 0 or tensor.numel() == 0 or tensor.dim() == 0:
        return
    call.contiguous(tensor)
    tiles = ceil(tensor.numel() / TILE)
    blocks = ceil(tiles / ceil(tiles / call.machine.spec.multiprocessors))
    call.scratch(4 * blocks)
    call.scratch(8 * blocks)


@decomposition("isin.Tensor_Tensor", "isin.Tensor_Tensor_out")
def isin(elements, test_elements, *, assume_unique=False, invert=False, out=None):
    """Decomposes isin: compares all pairs if few elements are searched for, else sorts both together.

    (aten/src/ATen/native/TensorCompare.cpp, isin_default_kernel_gpu and isin_sorting)
    """
    found = _place(elements, out)
    if elements.numel() == 0:
        return found
    if test_elements.numel() < 10.0 * elements.numel() ** 0.145:
        return _among_few(found, elements, test_elements, invert)
    if assume_unique:
        together, order = torch.cat([elements.ravel(), test_elements.ravel()]), None
    else:
        flat, order = torch._unique(elements, sorted=False, return_inverse=True)
        tested, _ = torch._unique(test_elements, sorted=False)
        together = torch.cat([flat, tested])
        del flat, tested
    return _among_many(found, together, order, invert)


def _place(elements, out):
    """Returns the tensor of results."""
    if out is None:
        return torch.empty(elements.shape, dtype=torch.bool, device=elements.device)
    return out if out.shape == elements.shape else out.resize_(elements.shape)


def _among_few(found, elements, tested, invert):
    tested = tested.view([1] * elements.dim() + [-1])
    compared = elements.unsqueeze(-1).ne(tested) if invert else elements.unsqueeze(-1).eq(tested)
    result = compared.all(-1) if invert else compared.any(-1)
    found.copy_(result)
    del result, compared
    return found


def _among_many(found, together, order, invert):
    ordered, places = together.sort(stable=True, dim=0, descending=False)
    duplicate = torch.empty_like(ordered, dtype=torch.bool)
    first, second = ordered[1:], ordered[:-1]
    duplicate[:-1].copy_(first.ne(second) if invert else first.eq(second))
    duplicate[-1:].fill_(invert)
    mask = torch.empty_like(duplicate)
    mask.index_copy_(0, places, duplicate)
    if order is None:
        found.copy_(mask[: found.numel()].view_as(found))
    else:
        found.copy_(torch.ops.aten.index.Tensor(mask, [order]))
    del mask, duplicate, first, second, ordered, places
    return found


@decomposition("isin.Tensor_Scalar", "isin.Tensor_Scalar_out")
def isin_scalar(elements, test_element, *, assume_unique=False, invert=False, out=None):
    """Decomposes isin of one number: a comparison (aten/src/ATen/native/TensorCompare.cpp)."""
    compare = torch.ne if invert else torch.eq
    if out is None:
        return compare(elements, test_element)
    return compare(elements, test_element, out=_place(elements, out))


# Rules for distinct values (torch.unique). Their number depends on values, so these have to be known.

INT = 4  # bytes
INDEX = 8


@rule("_unique.default", "_unique2.default", only=True)
def unique(call: OpCall) -> None:
    """Rule of unique_cuda_template: the elements sorted, and with `return_inverse` also where each was.

    (aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu)
    """
    tensor, inverse = call["self", "return_inverse"]
    n, element, spec = tensor.numel(), tensor.element_size(), call.machine.spec
    if n == 0:
        return
    call.contiguous(tensor)
    call.scratch(n * element)
    if inverse:
        ramp, _ = call.scratch(n * INDEX), call.scratch(n * INDEX)
        call.release(call.scratch(cub.radix_sort(n, element, INDEX, spec)), ramp)
    else:
        if element == 1 and spec.compute_capability >= (9, 0):
            call.machine.unmodeled.add(
                "torch.unique of bytes", "how this GPU's sort of keys of 1 byte is tiled", lower_bound=False
            )
        call.release(call.scratch(cub.radix_sort(n, element, 0, spec)))
    _of_sorted(call, n, INDEX if inverse else 0, call.get("return_counts", False))


@rule("unique_consecutive.default", only=True)
def unique_consecutive(call: OpCall) -> None:
    """Rule of unique_consecutive: compute_unique of adjacent elements (aten/src/ATen/native/cuda/UniqueCub.cu)."""
    tensor, inverse, counts, dim = call["self", "return_inverse", "return_counts", "dim"]
    if tensor.numel() == 0 or dim is not None:
        return
    call.contiguous(tensor)
    _of_sorted(call, tensor.numel(), INT if inverse else 0, counts)


@rule("embedding_renorm_.default")
def embedding_renorm(call: OpCall) -> None:
    """Rule of embedding_renorm_cuda_ (`max_norm` of an embedding), which scales each row that is looked up once.

    So the indices are sorted, and their distinct values taken (aten/src/ATen/native/cuda/Embedding.cu). Order and sizes
    were read from oracle traces.
    """
    indices = call["indices"]
    n, element = indices.numel(), indices.element_size()
    if n == 0:
        return
    of_a_row = call.machine.torch_version < (2, 13)  # each row separately, in its layout; since then all together
    copies = [] if of_a_row else [*call.contiguous(indices), call.scratch(n * element)]
    ordered, places = call.scratch(n * element), call.scratch(n * INDEX)
    if of_a_row:
        sort_along(call, indices, indices.dim() - 1, indices)
    else:
        sort_one_row(call, n, element)
    call.release(places)
    distinct, count = call.scratch(n * element), call.scratch(INDEX)
    call.release(call.scratch(cub.unique(n, element, call.machine.spec)))
    call.release(count, distinct, ordered, *reversed(copies))


def _of_sorted(call: OpCall, n: int, inverse: int, counts: bool) -> None:
    """Allocates as compute_unique: results as long as the input, which are truncated afterwards.

    `inverse` is the bytes of the number that says where an element went, or 0 without it.
    """
    distinct, where, *rest = call.outputs
    spec = call.machine.spec
    if inverse:
        call.allocate_outputs(where)
        places = call.scratch(n * inverse)
        call.release(call.scratch(cub.inclusive_sum(n, spec)), places)
    _as_long_as(n, distinct)
    call.allocate_outputs(distinct)
    count = call.scratch(INDEX)
    if counts:
        _as_long_as(n, *rest)
        call.allocate_outputs(*rest)
        call.release(call.scratch(cub.run_lengths(n)))
    else:
        call.release(call.scratch(cub.unique(n, distinct.element_size(), spec)))
    call.release(count)


def _as_long_as(n: int, *outputs: torch.Tensor) -> None:
    for output in outputs:
        output.untyped_storage().resize_(n * output.element_size())
