"""The staging buffer and semaphores that a reduction over a large tensor takes.

A model of aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, gpu_reduce_kernel): when one block of threads would
have to read too many values per output, several blocks share an output; they write partial results to a global
buffer and count themselves in with semaphores.
"""

from dataclasses import dataclass
from math import ceil, prod

import torch

from labkit.simulator.kernels.launch import Launch, rule

MAX_THREADS = 512  # of a block (Reduce.cuh, MAX_NUM_THREADS)
WARP = 32
VECTOR = 4  # values that one thread reads at once, at most
MIN_VALUES, MAX_VALUES = 16, 256  # per thread, between which more blocks are asked for
INDEX_LIMIT = 2**31 - 1  # bytes that 32-bit indexing reaches; larger tensors are reduced in halves


@dataclass
class Dim:
    """One dimension of the reduction, strides in elements; `kept` is None where the dimension is reduced."""

    size: int
    stride: int
    kept: int | None

    def chains_to(self, outer: "Dim") -> bool:
        if (self.kept is None) != (outer.kept is None) or self.size * self.stride != outer.stride:
            return False
        return self.kept is None or self.size * self.kept == outer.kept


def dims_of(tensor: torch.Tensor, reduced: set[int]) -> list[Dim]:
    """Reduced dims first, by stride; then the kept ones, by the stride they have in the output; joined."""
    kept_sizes = [1 if i in reduced else size for i, size in enumerate(tensor.shape)]
    kept_strides = [prod(kept_sizes[i + 1 :]) for i in range(tensor.dim())]
    dims = [
        Dim(size, stride, None if i in reduced else kept_strides[i])
        for i, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if size != 1
    ]
    dims.sort(key=lambda dim: (dim.kept is not None, dim.stride if dim.kept is None else dim.kept))
    joined: list[Dim] = []
    for dim in dims:
        if joined and joined[-1].chains_to(dim):
            joined[-1] = Dim(joined[-1].size * dim.size, joined[-1].stride, joined[-1].kept)
        else:
            joined.append(dim)
    return joined


def pieces(dims: list[Dim], element: int, out_element: int):
    """The reduction itself, or, where 32-bit indexing does not reach, its halves along the longest dim, in turn."""
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
    """The largest power of two that is at most n and at most limit (a power of two)."""
    return min(1 << (max(n, 1).bit_length() - 1), limit)


def staging(dims: list[Dim], accumulator: int, spec, aligned_to: int = 0) -> tuple[int, int]:
    """Bytes of (buffer, semaphores) that one reduction takes; (0, 0) where a block of threads per output will do.

    `accumulator`: bytes of one partial result. `spec`: the GPU. `aligned_to`: the input's address in elements.
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
    limit = MAX_THREADS // vector
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


def reduce(launch: Launch, tensor: torch.Tensor, dims, accumulator: int, out_element: int) -> None:
    """Takes and frees the scratch of reducing `dims` (None: all) of `tensor`: buffer, semaphores, freed in reverse."""
    if tensor.numel() == 0 or tensor.dim() == 0:
        return
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        dims = range(tensor.dim())
    elif isinstance(dims, int):
        dims = [dims]
    reduced = {dim % tensor.dim() for dim in dims}
    _reduce(launch, dims_of(tensor, reduced), tensor.element_size(), accumulator, out_element, tensor.storage_offset())


def reduce_all(launch: Launch, elements: int, dtype: torch.dtype) -> None:
    """The scratch of summing `elements` numbers that lie side by side, of a floating dtype, as is their sum."""
    _reduce(launch, [Dim(elements, 1, None)], dtype.itemsize, accumulator_of(dtype), dtype.itemsize, 0)


def _reduce(launch, dims, element: int, accumulator: int, out_element: int, aligned_to: int) -> None:
    for piece in pieces(dims, element, out_element):
        buffer, semaphores = staging(piece, accumulator, launch.machine.spec, aligned_to)
        if buffer:
            held = launch.scratch(buffer), launch.scratch(semaphores)
            launch.release(*reversed(held))


def accumulator_of(dtype: torch.dtype) -> int:
    """Bytes of the type in which CUDA accumulates a sum whose result has this dtype (at::acc_type, opmath)."""
    return max(4, dtype.itemsize) if dtype.is_floating_point or dtype.is_complex else 8


@rule("sum.default", "sum.dim_IntList", "sum.IntList_out", "mean.default", "mean.dim", "nansum.default")
def sums(launch: Launch) -> None:
    """ReduceSumProdKernel.cu, ReduceMomentKernel.cu: half types are read as they are, integers cast to int64 first."""
    (output,) = launch.outputs
    tensor = launch.args[0]
    launch.give(output)
    if not tensor.dtype.is_floating_point and tensor.dtype != output.dtype:
        launch.scratch_like(tensor, output.dtype)
        tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=output.dtype, device="meta")
    reduce(launch, tensor, launch.argument(1, "dim"), accumulator_of(output.dtype), output.element_size())


@rule("linalg_vector_norm.default")
def norms(launch: Launch) -> None:
    (output,) = launch.outputs
    launch.give(output)
    reduce(launch, launch.args[0], launch.argument(2, "dim"), accumulator_of(output.dtype), output.element_size())


@rule("amax.default", "amin.default", "max.default", "min.default", "any.default", "all.default")
@rule("any.dim", "all.dim", "any.dims", "all.dims")
def extremes(launch: Launch) -> None:
    """The accumulator is the element itself (ReduceMinValuesKernel.cu, ReduceLogicKernel.cu)."""
    (output,) = launch.outputs
    launch.give(output)
    tensor = launch.args[0]
    reduce(launch, tensor, launch.argument(1, "dim"), output.element_size(), output.element_size())


@rule("argmax.default", "argmin.default", "max.dim", "min.dim")
@rule("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def pairs(launch: Launch) -> None:
    """The accumulator is 16 bytes: a value with its index, or Welford's running moments (ReduceMomentKernel.cu)."""
    launch.give(*launch.outputs)
    tensor = launch.args[0]
    reduce(launch, tensor, launch.argument(1, "dim"), 16, launch.outputs[0].element_size())
