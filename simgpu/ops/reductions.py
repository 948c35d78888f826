"""Rules for reductions: of a whole tensor, of segments, and of distances between rows."""

import math
from dataclasses import dataclass
from math import ceil, prod

import torch

from simgpu.checks.scalar_types import read_as
from simgpu.ops.op_call import OpCall, decomposition, rule

# Computes the staging buffer and semaphores that a reduction over a large tensor allocates.
# It models aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig, gpu_reduce_kernel). If one thread block would have
# to read too many values per output, several blocks share an output. They write partial results to a global buffer,
# and count finished blocks with semaphores.

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


# Rules for reductions: conversions and copies before them, and the staging of each (`staging`).

HALVES = (torch.float16, torch.bfloat16)


def converted(call: OpCall, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns what is reduced to a result of `dtype`: the tensor itself, or scratch that it is converted into.

    Halves are converted to float32 as they are read (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction).
    """
    if tensor.dtype == dtype or (tensor.dtype in HALVES and dtype == torch.float32):
        return tensor
    call.scratch_like(tensor, dtype)
    return torch.empty_like(tensor, dtype=dtype)


def flat(call: OpCall, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as one row, for a full reduction; allocates scratch for a copy if it cannot be viewed
    (`reshape`).
    """
    try:
        return tensor.view(-1)
    except RuntimeError:
        return contiguous(call, tensor)


def contiguous(call: OpCall, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor, in scratch unless it is `tensor`."""
    if tensor.is_contiguous():
        return tensor
    call.scratch_like(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


@rule("prod.default", "prod.dim_int")
def products(call: OpCall) -> None:
    """Rule of prod, which is that of sum.

    Its gradient is grad * result / self if no factor is 0, which CUDA checks, and otherwise what PyTorch computes here
    (torch/csrc/autograd/FunctionsManual.cpp, prod_backward).
    """
    if call["self"].requires_grad and torch.is_grad_enabled():
        call.machine.unmodeled.add(
            "the gradient of prod", "what it takes where no factor is 0, which only values tell", lower_bound=False
        )
    sums(call)


@rule("sum.default", "sum.dim_IntList", "sum.IntList_out", "mean.default", "mean.dim", "mean.out", "nansum.default")
def sums(call: OpCall) -> None:
    """Rule of ReduceSumProdKernel.cu and ReduceMomentKernel.cu.

    The kernel of prod is compiled at run time, which the oracle cannot do; it is configured as the others are.
    """
    output = call.allocate_output()
    tensor = converted(call, call["self"], output.dtype)
    reduce(call, tensor, call.get("dim"), accumulator_of(output.dtype), output.element_size())


@rule("hash_tensor.default")
def hashes(call: OpCall) -> None:
    """Rule of xor_sum_kernel_cuda: elements are read unconverted, and give one of 8 B (ReduceSumProdKernel.cu)."""
    output = call.allocate_output()
    reduce(call, call["self"], call["dim"], output.element_size(), output.element_size())


@rule("trace.default")
def trace(call: OpCall) -> None:
    """Rule of trace_cuda: the sum of the diagonal (aten/src/ATen/native/cuda/TriangularOps.cu)."""
    output = call.allocate_output()
    diagonal = converted(call, call["self"].diagonal(), output.dtype)
    reduce(call, diagonal, None, accumulator_of(output.dtype), output.element_size())


@rule("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def norms(call: OpCall) -> None:
    """Rule of linalg_vector_norm_out (aten/src/ATen/native/LinearAlgebra.cpp) and ReduceNormKernel.cu."""
    output = call.allocate_output()
    reduce_to_norms(call, call["self"], call["dim"], output.dtype)


def reduce_to_norms(call: OpCall, tensor: torch.Tensor, dims, dtype: torch.dtype) -> None:
    """Allocates the scratch of norms of `dtype` over some dims (None is all); those of single elements are absolute
    values.
    """
    reduced = range(tensor.dim()) if not dims else [dims] if isinstance(dims, int) else dims
    if tensor.numel() and (all(tensor.shape[dim] == 1 for dim in reduced) if tensor.dim() else not dims):
        if tensor.dtype != dtype:
            call.release(call.scratch_like(tensor, None if tensor.dtype.is_complex else dtype))
        return
    if not tensor.dtype.is_complex:
        tensor = converted(call, tensor, dtype)
    reduce(call, tensor, dims, accumulator_of(dtype), dtype.itemsize)


@rule("amax.default", "amin.default")
def extremes(call: OpCall) -> None:
    """Rule of ReduceMaxValuesKernel.cu: the accumulator is the element itself."""
    output = call.allocate_output()
    reduce(call, call["self"], call["dim"], output.element_size(), output.element_size())


@rule("any.default", "all.default", "any.dim", "all.dim", "any.dims", "all.dims")
def truths(call: OpCall) -> None:
    """Rule of allany_impl (ReduceOps.cpp) and ReduceLogicKernel.cu: one element is converted to bool."""
    output = call.allocate_output()
    tensor = call["self"]
    if tensor.numel() != 1:
        held = output if call.machine.torch_version >= (2, 12) else tensor  # the dtype of accumulators
        reduce(call, tensor, call.get("dim"), held.element_size(), output.element_size())
    elif tensor.dtype != torch.bool:
        call.scratch_like(output)


@rule("max.default", "min.default")
def extreme_of_all(call: OpCall) -> None:
    """Rule of max and min of all elements, of a contiguous tensor (aten/src/ATen/native/ReduceAllOps.cpp)."""
    output = call.allocate_output()
    tensor = contiguous(call, call["self"])
    reduce(call, tensor, None, output.element_size(), output.element_size())


@rule("aminmax.default")
def both_extremes(call: OpCall) -> None:
    """Rule of aminmax: an accumulator holds both (TensorCompare.cpp, cuda/ReduceAMinMaxKernel.cu)."""
    call.allocate_outputs(*call.outputs)
    tensor, dim = call["self", "dim"]
    if dim is None:
        tensor = contiguous(call, tensor)
    reduce(call, tensor, dim, 2 * tensor.element_size(), tensor.element_size())


@rule("argmax.default", "argmin.default")
def positions(call: OpCall) -> None:
    """Rule of ReduceArgMaxKernel.cu: the accumulator is a value with its index, 16 B."""
    output = call.allocate_output()
    tensor, dim = call["self", "dim"]
    reduce(call, flat(call, tensor) if dim is None else tensor, dim, 16, output.element_size())


@rule("max.dim", "min.dim")
def extremes_and_positions(call: OpCall) -> None:
    """Rule of ReduceMaxValuesKernel.cu with indices: the accumulator is a value with its index, 16 B."""
    values, indices = call.outputs
    call.allocate_outputs(values, indices)
    tensor, dim = call["self", "dim"]
    _lie_alike(values, indices, None if call["keepdim"] or not tensor.dim() else dim % tensor.dim())
    reduce(call, tensor, dim, 16, tensor.element_size())


def _lie_alike(first: torch.Tensor, second: torch.Tensor, dim: int | None) -> None:
    """Raises RuntimeError for two results with different strides, as `out=` may give them.

    `dim` is the dim that they lack, which the kernel has with stride 0 (aten/src/ATen/TensorIterator.cpp,
    TensorIterator::reduce_op).
    """
    strides = [list(one.stride()) for one in (first, second)]
    if strides[0] != strides[1]:
        if dim is not None:
            strides = [[*one[:dim], 0, *one[dim:]] for one in strides]
        raise RuntimeError(
            "reduce_op(): expected both outputs to have same strides, but output1 has "
            f"{strides[0]} and output2 has {strides[1]}"
        )


@rule("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def moments(call: OpCall) -> None:
    """Rule of ReduceMomentKernel.cu: the accumulator holds Welford's two moments and two counts, of 4 or 8 B each.

    For complex numbers the real and imaginary parts are reduced one after the other, and combined
    (aten/src/ATen/native/ReduceOps.cpp, std_var_out, std_var_mean_out).
    """
    tensor, dims = call["self", "dim"]
    if not tensor.dtype.is_complex:
        call.allocate_outputs(*call.outputs)
        _reduce_moments(call, tensor, dims)
        return
    parts = []
    for part in torch.view_as_real(tensor).unbind(-1):
        parts += [call.scratch(one.numel() * part.element_size()) for one in call.outputs]
        _reduce_moments(call, part, dims)
    call.allocate_outputs(*call.outputs)
    call.release(*reversed(parts))


def _reduce_moments(call: OpCall, tensor: torch.Tensor, dims) -> None:
    reduce(call, tensor, dims, 4 * max(4, tensor.element_size()), tensor.element_size())


@rule("renorm.default")
def renorm(call: OpCall) -> None:
    """Rule of renorm_out: the norms, for halves in float32, and then the factors (Normalization.cpp)."""
    call.allocate_output()
    tensor, dim = call["self", "dim"]
    dim %= tensor.dim()
    others = [i for i in range(tensor.dim()) if i != dim]
    norms = tensor.shape[dim]
    accumulator = torch.float32 if tensor.dtype in HALVES else tensor.dtype.to_real()
    call.scratch(norms * accumulator.itemsize)
    reduce_to_norms(call, tensor, others, accumulator)
    if accumulator != tensor.dtype:
        call.scratch(norms * tensor.element_size())


@rule("count_nonzero.default", "count_nonzero.dim_IntList")
def counts(call: OpCall) -> None:
    """Rule of count_nonzero_cuda: the sum of `tensor != 0` (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    (output,) = call.outputs
    tensor = call["self"]
    if tensor.dtype != torch.bool:
        call.scratch_like(tensor, torch.bool)
        tensor = torch.empty_like(tensor, dtype=torch.bool)
    call.allocate_outputs(output)
    reduce(call, converted(call, tensor, torch.int64), call["dim"], 8, 8)


# Rules for reducing segments of a tensor of different lengths (aten/src/ATen/native/cuda/SegmentReduce.cu).


@decomposition("segment_reduce.default")
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    """Decomposes segment_reduce_kernel: the host checks the lengths, unless the call says that they are valid."""
    axis %= data.dim()
    data = data.contiguous()
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    if offsets is not None:
        segments = offsets.shape[-1] - 1
    else:
        segments = lengths.shape[-1]  # pyright: ignore[reportOptionalMemberAccess]
        if not unsafe:
            _check(data, lengths, axis)
    shape = (*data.shape[:axis], segments, *data.shape[axis + 1 :])
    result = torch.empty(shape, dtype=data.dtype, device=data.device)
    ends = _ends(lengths, offsets, axis)
    if data.dim() == 1:
        torch.empty(1, dtype=torch.uint8, device=data.device)  # CUB's segmented reduction
    del ends
    return result


def _check(data, lengths, axis) -> None:
    if lengths.min().item() < 0:
        raise RuntimeError("lengths contains negative value!")
    total = lengths.sum([-1])
    right = total == data.shape[axis]
    all_right = right.all().item()
    del right, total
    if not all_right:
        raise RuntimeError(
            "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
            "!unsafe."
        )


def _ends(lengths, offsets, axis):
    """Returns what the kernel needs in addition: lengths from offsets, or offsets from lengths."""
    if offsets is not None:
        return offsets.contiguous().diff()
    lengths = lengths.contiguous()
    begin = torch.zeros((*lengths.shape[:axis], 1), dtype=lengths.dtype, device=lengths.device)
    ends = torch.cat([begin, lengths], axis)
    del begin
    return ends.cumsum_(axis)


@decomposition("_segment_reduce_backward.default")
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    """Decomposes _segment_reduce_lengths_offsets_backward_cuda_kernel."""
    grad, output, data = grad.contiguous(), output.contiguous(), data.contiguous()
    result = torch.zeros(data.shape, dtype=grad.dtype, device=grad.device)
    ends = _ends(lengths, offsets, axis % data.dim())
    del ends, data, output, grad
    return result


# Rules for distances between rows (aten/src/ATen/native/cuda/DistanceKernel.cu).


@rule("_pdist_backward.default")
def pdist_backward(call: OpCall) -> None:
    """Rule of pdist_backward_kernel_impl: the contribution of every other row to each row, then the sum."""
    output = call.allocate_output()
    grad, (tensor, p) = call.first, call["self", "p"]  # named grad_output from torch 2.14 on
    if p == 0 or grad.numel() == 0 or tensor.numel() == 0:
        return
    shares = torch.empty(tensor.shape[0] - 1, *output.shape, dtype=output.dtype, device="meta")
    call.scratch_like(shares)
    reduce(call, shares, [0], accumulator_of(output.dtype), output.element_size())


@rule("_cdist_backward.default")
def cdist_backward(call: OpCall) -> None:
    """Rule of _cdist_backward (Distance.cpp) and cdist_backward_kernel_impl.

    It allocates, per row of the second tensor, its contribution to each row of the first, and then the sum.
    """
    (output,) = call.outputs
    grad, (first, second, p, distances) = call.first, call["x1", "x2", "p", "cdist"]
    if 0 in (grad.numel(), first.numel(), second.numel()):
        call.allocate_outputs(output)
        return
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    call.contiguous(*(tensor.expand(*batch, *tensor.shape[-2:]) for tensor in (first, second)))
    call.contiguous(distances, grad)
    call.allocate_outputs(output)
    if p == 0:
        return
    shape = math.prod(batch), second.shape[-2], first.shape[-2], first.shape[-1]
    shares = torch.empty(shape, dtype=output.dtype, device="meta")
    held = call.scratch_like(shares)
    reduce(call, shares, [1], accumulator_of(output.dtype), output.element_size())
    call.release(held)


@rule("_cdist_forward.default")
def cdist(call: OpCall) -> None:
    """Rule of cdist_impl (aten/src/ATen/native/Distance.cpp): batches are made equal and contiguous."""
    first, second = call["x1", "x2"]
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    call.contiguous(*(tensor.expand(*batch, *tensor.shape[-2:]) for tensor in (first, second)))
    call.allocate_outputs(*call.outputs)
    if call.outputs[0].numel():
        read_as(first.dtype, second)
