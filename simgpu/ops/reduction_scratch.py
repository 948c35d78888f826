"""Computes the staging buffer and semaphores that a reduction over a large tensor allocates.

It models aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, gpu_reduce_kernel). If one thread block would have to
read too many values per output, several blocks share an output. They write partial results to a global buffer, and
count finished blocks with semaphores.
"""

from dataclasses import dataclass
from math import ceil, prod

import torch

from simgpu.ops.op_call import OpCall

MAX_THREADS = 512  # threads per block (Reduce.cuh, MAX_NUM_THREADS)
MAX_THREADS_OF_16 = 256  # for elements of 16 B: complex128 (Reduce.cuh, mnt_wrapper)
WARP = 32
VECTOR = 4  # the most values that one thread reads at once
MIN_VALUES, MAX_VALUES = 16, 256  # per thread; between these, more blocks are used
INDEX_LIMIT = 2**31 - 1  # bytes that 32-bit indexing reaches; larger tensors are reduced in halves


@dataclass
class Dim:
    """One dimension of the reduction, strides in elements; `kept` is None if the dimension is reduced."""

    size: int
    stride: int
    kept: int | None

    def chains_to(self, outer: "Dim") -> bool:
        if (self.kept is None) != (outer.kept is None) or self.size * self.stride != outer.stride:
            return False
        return self.kept is None or self.size * self.kept == outer.kept


def dims_of(tensor: torch.Tensor, reduced: set[int]) -> list[Dim]:
    """Returns the dims of a reduction as TensorIterator orders and joins them, reduced ones first."""
    kept_sizes = [1 if i in reduced else size for i, size in enumerate(tensor.shape)]
    kept_strides = [prod(kept_sizes[i + 1 :]) for i in range(tensor.dim())]
    dims = [
        Dim(size, stride, None if i in reduced else kept_strides[i])
        for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
    ]
    joined: list[Dim] = []
    for dim in _ordered(dims):
        if dim.size == 1:
            continue
        if joined and joined[-1].chains_to(dim):
            joined[-1] = Dim(joined[-1].size * dim.size, joined[-1].stride, joined[-1].kept)
        else:
            joined.append(dim)
    return joined


def _ordered(dims: list[Dim]) -> list[Dim]:
    """Sorts dims as TensorIterator.cpp, reorder_dimensions: an insertion sort from the last dim to the first.

    Expanded dims compare with no other, so their final position depends on the order of comparisons.
    """
    order = dims[::-1]
    for start in range(1, len(order)):
        moving = start
        for before in range(start - 1, -1, -1):
            comparison = _compared(order[before], order[moving])
            if comparison > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
            elif comparison < 0:
                break
    return order


def _compared(first: Dim, second: Dim) -> int:
    """Returns -1 if two dims are in order, 1 if they are not, or 0 if undecided: by the output, then by the input."""
    if (first.kept is None) != (second.kept is None):
        return -1 if first.kept is None else 1
    for one, other in ((first.kept or 0, second.kept or 0), (first.stride, second.stride)):
        if one and other and one != other:
            return -1 if one < other else 1
        if one and other and first.size > second.size:
            return 1
    return 0


def pieces(dims: list[Dim], element: int, out_element: int):
    """Yields the reduction itself, or if 32-bit indexing does not reach, its halves along the longest dim, in turn."""
    reach = 1 + sum((dim.size - 1) * dim.stride * element for dim in dims)
    out_reach = 1 + sum((dim.size - 1) * (dim.kept or 0) * out_element for dim in dims)
    if max(reach, out_reach, prod(dim.size for dim in dims)) <= INDEX_LIMIT:
        yield dims
        return
    extents = [(dim.size - 1) * max(dim.stride * element, (dim.kept or 0) * out_element) for dim in dims]
    longest = extents.index(max(extents))
    half = dims[longest].size // 2
    for size in (half, dims[longest].size - half):
        part = list(dims)
        part[longest] = Dim(size, dims[longest].stride, dims[longest].kept)
        yield from pieces(part, element, out_element)


def _power_of_two(n: int, limit: int) -> int:
    """Returns the largest power of two that is at most n and at most limit (a power of two)."""
    return min(1 << (max(n, 1).bit_length() - 1), limit)


def staging(
    dims: list[Dim], accumulator: int, spec, aligned_to: int = 0, threads: int = MAX_THREADS
) -> tuple[int, int]:
    """Returns the bytes of (buffer, semaphores) that one reduction allocates; (0, 0) if one thread block per output is
    enough.

    `accumulator` is the bytes of one partial result, and `spec` the GPU. `aligned_to` is the input's address in
    elements, and `threads` the most threads per block.
    """
    reduced = [dim for dim in dims if dim.kept is None]
    kept = [dim for dim in dims if dim.kept is not None]
    outputs, inputs = prod(dim.size for dim in kept), prod(dim.size for dim in reduced)
    along_fastest = not kept or (bool(reduced) and reduced[0].stride < kept[0].stride)
    dim0, dim1 = (inputs, outputs) if along_fastest else (outputs, inputs)
    fastest = (reduced[0].stride if reduced else 1) if along_fastest else kept[0].stride
    vector = 1
    if fastest == 1 and along_fastest:
        if dim0 >= 128 and len(reduced) == 1:
            dim0 //= VECTOR
    elif fastest == 1:
        vector = VECTOR
        others = [dim.stride for dim in dims if dim is not kept[0]]
        while any(n % vector for n in (aligned_to, kept[0].size, *others)):
            vector //= 2
        dim0 //= vector
    limit = threads // vector
    width0, height0 = _power_of_two(dim0, limit), _power_of_two(dim1, limit)
    width = min(width0, WARP)
    height = min(height0, limit // width)
    width = min(width0, limit // height)
    step_in, step_out = (width, 1) if along_fastest else (1, width)
    across_warps = ceil(inputs / step_in) >= min(height * MIN_VALUES, MAX_VALUES)
    if across_warps:
        step_in *= height
    else:
        step_out *= height
    per_thread = ceil(inputs / step_in)
    target = spec.multiprocessors * (spec.max_threads_per_multiprocessor // (width * height))
    grid = ceil((outputs // vector) / step_out)
    if not across_warps or per_thread < MAX_VALUES or grid > target:
        return 0, 0
    blocks = max(min(ceil(target / grid), ceil(per_thread / MIN_VALUES)), ceil(per_thread / MAX_VALUES))
    if blocks <= 1:
        return 0, 0
    buffer = accumulator * outputs * blocks * (1 if along_fastest else width * vector)
    return buffer, 4 * grid


def reduce(call: OpCall, tensor: torch.Tensor, dims, accumulator: int, out_element: int) -> None:
    """Allocates and frees the scratch of reducing `dims` (None is all) of `tensor`: buffer, semaphores, freed in
    reverse.
    """
    if tensor.numel() == 0 or tensor.dim() == 0:
        return
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        dims = range(tensor.dim())
    elif isinstance(dims, int):
        dims = [dims]
    reduced = {dim % tensor.dim() for dim in dims}
    _reduce(
        call, dims_of(tensor, reduced), tensor.element_size(), accumulator, out_element, int(tensor.storage_offset())
    )


def reduce_all(call: OpCall, elements: int, dtype: torch.dtype, accumulator: int | None = None) -> None:
    """Allocates and frees the scratch of reducing `elements` contiguous elements to one of their dtype, by default a
    sum.
    """
    _reduce(call, [Dim(elements, 1, None)], dtype.itemsize, accumulator or accumulator_of(dtype), dtype.itemsize, 0)


def _reduce(call, dims, element: int, accumulator: int, out_element: int, aligned_to: int) -> None:
    parts = list(pieces(dims, element, out_element))
    between = None  # the accumulator of the parts, if the output's elements are too small for it
    if len(parts) > 1 and accumulator > out_element:
        between = call.scratch(accumulator * prod(dim.size for dim in dims if dim.kept is not None))
    threads = MAX_THREADS_OF_16 if element == 16 else MAX_THREADS
    for part in parts:
        buffer, semaphores = staging(part, accumulator, call.machine.spec, aligned_to, threads)
        if buffer:
            held = call.scratch(buffer), call.scratch(semaphores)
            call.release(*reversed(held))
    call.release(between)


def accumulator_of(dtype: torch.dtype) -> int:
    """Returns the bytes of the type in which CUDA accumulates a sum whose result has this dtype (at::acc_type,
    opmath).
    """
    return max(4, dtype.itemsize) if dtype.is_floating_point or dtype.is_complex else 8
