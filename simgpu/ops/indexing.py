"""Rules for reading and writing by index."""

from math import ceil

import torch

from simgpu.checks.overlaps import refuse_within
from simgpu.checks.scalar_types import legacy_name, name, read_as
from simgpu.device import machine as machines
from simgpu.ops import cub
from simgpu.ops.op_call import OpCall, decomposition, preprocess_args, rule
from simgpu.ops.reductions import reduce_all
from simgpu.storage import layout, storage_map

ROWS_PER_PARTIAL = 10  # EmbeddingBackwardKernel.cu, NROWS_PER_THREAD
MAX_THREADS = 1024  # EmbeddingBackwardKernel.cu, MAX_BLOCK_SIZE
ATOMIC_BLOCKS = 4  # thread blocks per multiprocessor: EmbeddingBackwardKernel.cu, MAX_ATOMIC_ACCUM_BLOCKS_PER_SM
INDICES = {torch.int64, torch.int32, torch.bool, torch.uint8}
FEW_INDICES = 3072  # up to this many, Embedding.cu, embedding_dense_backward_cuda, does not sort

# aten/src/ATen/native/Embedding.cpp: index_select of the flattened indices, which are copied if they cannot be viewed
# as flat.
decomposition("embedding.default")


@rule("embedding_dense_backward.default")
def embedding_backward(call: OpCall) -> None:
    """Rule of embedding_dense_backward_cuda: many indices are sorted first (aten/src/ATen/native/cuda/Embedding.cu)."""
    grad, indices, weights = call["grad_output", "indices", "num_weights"]
    padding, by_frequency = call["padding_idx", "scale_grad_by_freq"]
    call.contiguous(indices, grad)
    n, index = indices.numel(), indices.element_size()
    if n <= FEW_INDICES and not by_frequency:
        return
    sort_indices(call, n, index, weights if padding >= 0 else weights - 1 - padding)
    if by_frequency:
        count_equal(call, n, index)
    sum_by_index(call, grad, n, index, weights, atomically=True)


def sort_indices(call: OpCall, n: int, index: int, largest: int) -> None:
    """Allocates scratch for `n` indices of `index` bytes, up to `largest`, sorted with their original positions."""
    call.scratch(n * index)
    call.scratch(n * index)
    ramp = call.scratch(n * index)
    bits = None
    if call.machine.torch_version >= (2, 13):  # before, the sort uses all bits of an index
        bits = max(largest, 1).bit_length()
    call.release(call.scratch(cub.radix_sort(n, index, index, call.machine.spec, bits)), ramp)


def count_equal(call: OpCall, n: int, index: int) -> None:
    """Allocates scratch for the count of each of `n` sorted indices of `index` bytes, and for computing it.

    It counts upwards, and then takes the maximum downwards.
    """
    call.scratch(n * index)
    for _ in range(2):
        call.release(call.scratch(cub.scan_by_key(n, index, call.machine.spec)))


def sum_by_index(call: OpCall, grad, n: int, index: int, weights: int, atomically: bool) -> None:
    """Allocates as embedding_backward_cuda_kernel, for `n` sorted indices of `index` bytes into `weights` rows.

    The rows of `grad` with one index are summed in parts of 10 rows, and the parts into the gradient of the weights,
    the output; atomically if there are few parts (EmbeddingBackwardKernel.cu).
    """
    (output,) = call.outputs
    spec = call.machine.spec
    call.allocate_outputs(output)
    call.scratch(n * index)  # start of each segment of equal indices
    call.scratch(8)  # number of segments
    keys = call.scratch(n * index)
    unique = call.scratch(cub.unique_by_key(n, index, spec, call.machine.torch_version))
    call.release(unique, keys)
    segments = min(n, weights)
    call.scratch(segments * index)  # parts per segment
    call.scratch(segments * index)  # start of each segment's parts
    call.release(call.scratch(cub.scan(segments, index)))
    call.scratch(8)  # number of parts
    parts = n // ROWS_PER_PARTIAL + segments
    call.scratch(parts * index)
    row = output.shape[-1]
    accumulator = torch.float32 if grad.dtype.itemsize < 4 else grad.dtype
    threads = -(-row // 32) * 32
    blocks = ceil(segments * threads / min(threads, MAX_THREADS)) if row else 0
    few = blocks < spec.multiprocessors * ATOMIC_BLOCKS and parts > 4 * blocks
    if atomically and few and not torch.are_deterministic_algorithms_enabled():
        call.scratch(parts * index)  # the segment of each part
        if accumulator != grad.dtype:
            call.scratch_like(output, accumulator)
    else:
        call.scratch(parts * row * accumulator.itemsize)


def _on_host(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on the host, with values or as a copy from the GPU."""
    return not storage_map.on_gpu(tensor)


def _brought(index: torch.Tensor) -> torch.Tensor:
    """Returns an index with the layout that it has on the device."""
    return torch.empty_like(index, device="meta") if _on_host(index) else index


def _depends_on_values(indices) -> bool:
    """Returns whether masks remain among the indices, because they fill or their values are unknown."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


@rule("index.Tensor")
def index(call: OpCall) -> None:
    """Rule of make_info (aten/src/ATen/native/TensorAdvancedIndexingUtils.h).

    Masks are indices by now (see selection.py). The iterator owns what is made of the indices, and frees the last one
    first.
    """
    made = _made_indices(call, call["indices"])
    call.allocate_outputs(*call.outputs)
    call.release(*reversed(made))


def _made_indices(call: OpCall, indices) -> list:
    """Allocates what make_info makes of each given index: a block or None per index.

    expandTensors (IndexingUtils.h) copies each host index to the GPU in its layout. Then they are broadcast, converted
    to int64, and in the constructor of AdvancedIndex made contiguous if their layouts differ
    (TensorAdvancedIndexingUtils.h).
    """
    given = [one for one in indices if one is not None]
    blocks = [call.scratch_like(one) if _on_host(one) else None for one in given]
    given = list(torch.broadcast_tensors(*map(_brought, given)))
    for place, one in enumerate(given):
        if one.dtype == torch.int32:
            converted = call.scratch_like(one, torch.int64)
            call.release(blocks[place])
            blocks[place] = converted
            given[place] = torch.empty_like(one, dtype=torch.int64, device="meta")
    if len({one.stride() for one in given}) > 1:
        copies = call.contiguous(*given)
        call.release(*(block for block, copy in zip(blocks, copies, strict=True) if copy is not None))
        blocks = [block if copy is None else copy for block, copy in zip(blocks, copies, strict=True)]
    return blocks


@rule("index_put.default", "index_put_.default", "_index_put_impl_.default")
def index_put(call: OpCall) -> None:
    """Rule of index_put and _index_put_impl_: a copy of the tensor unless it is in place; with `accumulate`, by
    sorting.

    (TensorAdvancedIndexing.cpp)
    """
    (tensor,) = call.outputs
    call.allocate_outputs(tensor)
    indices, value = call["indices", "values"]
    if len(indices) > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()} (got {len(indices)})")
    if _on_host(value) and value.dim() == 0:
        if _depends_on_values(indices):
            return  # masked_fill_
        call.scratch(value.element_size())
    if any(index is not None and index.dtype not in INDICES for index in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if _depends_on_values(indices):
        _check_same(tensor, value)
        return
    if call["accumulate"] or torch.are_deterministic_algorithms_enabled():
        node = torch._C._current_autograd_node()
        trusted = call.get("unsafe") or (node is not None and node.name() == "IndexBackward0")
        _put_by_sorting(call, tensor, indices, value, trusted)
        refuse_within(tensor)  # the copy_ back refuses it
    else:
        made = _made_indices(call, indices)
        shape = _chosen(tensor, indices)
        if not _expands_to(value.shape, shape):
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of "
                f"shape {list(shape)}"
            )
        _check_same(tensor, value)
        call.release(*made)  # AdvancedIndex stores them in a vector, which frees the first one first


def _check_same(tensor, value) -> None:
    """Raises RuntimeError if the written values have a dtype other than the tensor's.

    (TensorAdvancedIndexing.cpp, make_index_put_iterator)
    """
    if tensor.dtype != value.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {name(tensor.dtype)} for the destination "
            f"and {name(value.dtype)} for the source."
        )


def _chosen(tensor, indices) -> torch.Size:
    """Returns the shape of tensor[indices]: the indices' shape is in their place, or first if they are not adjacent."""
    places = [place for place, one in enumerate(indices) if one is not None]
    shape = torch.broadcast_shapes(*(indices[place].shape for place in places))
    adjacent = places[-1] - places[0] < len(places)
    before = [size for place, size in enumerate(tensor.shape[: places[-1]]) if place not in places]
    return (
        torch.Size((*before, *shape, *tensor.shape[places[-1] + 1 :]))
        if adjacent
        else torch.Size((*shape, *before, *tensor.shape[places[-1] + 1 :]))
    )


def _expands_to(shape, wanted) -> bool:
    """Returns whether a shape can be expanded to another (aten/src/ATen/ExpandUtils.h, is_expandable_to)."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


def _check_expands(value, shape) -> None:
    """Raises CUDA's RuntimeError if a value does not fit the selected shape."""
    try:
        value.expand(shape)
    except RuntimeError as error:
        raise RuntimeError(str(error).replace(f"Meta{name(value.dtype)}Type", legacy_name(value.dtype))) from None


def _put_by_sorting(call: OpCall, tensor, indices, value, trusted: bool) -> None:
    """Allocates as index_put_with_sort_kernel, where the indices are linearised and sorted.

    (aten/src/ATen/native/cuda/Indexing.cu) `trusted` says that they were checked before, in the forward pass.
    """
    call.contiguous(tensor)
    given = [index for index in indices if index is not None]
    on_host = [_on_host(one) for one in given]
    converted = []
    for place, one in enumerate(given):
        if one.dtype == torch.int32 and not on_host[place]:
            converted.append(call.scratch_like(one, torch.int64))
            given[place] = torch.empty_like(one, dtype=torch.int64)
    given = torch.broadcast_tensors(*given)
    n = given[0].numel()
    linear, *further = given
    linear_block = _linear_term(call, linear, on_host[0], trusted)
    for one, there in zip(further, on_host[1:], strict=True):
        call.release(_linear_term(call, one, there, trusted))
    call.release(*converted)
    for made in getattr(indices, "places", ()):  # for masks (selection.py): makeLinearIndex drops them
        place = storage_map.of(made)
        if place is not None:
            storage_map.release(place)
    places = [place for place, one in enumerate(indices) if one is not None]
    adjacent = places[-1] - places[0] < len(places)
    sizes = [size for place, size in enumerate(tensor.shape) if place not in places]
    after = tensor.shape[places[-1] + 1 :] if adjacent else sizes
    slice_size = torch.Size(after).numel()
    count = n * torch.Size(sizes).numel()
    held = []
    _check_expands(value, _chosen(tensor, indices))
    if value.numel() < count or not value.is_contiguous():
        held.append(call.scratch(count * value.element_size()))
    if n == 0 or slice_size == 0:
        return
    if not adjacent and not _in_front(tensor.shape, places).is_contiguous():
        held.append(call.scratch_like(tensor))
    if not torch.empty_like(linear).is_contiguous():
        held.insert(0, call.scratch(n * 8))  # replaces the linear index by a flat one
        call.release(linear_block)
    held += call.scratch(n * 8), call.scratch(n * 8)  # the sorted indices, and their original positions
    ramp = call.scratch(n * 8)
    bits = max((tensor.numel() - 1) // slice_size, 1).bit_length()
    call.release(call.scratch(cub.radix_sort(n, 8, 8, call.machine.spec, bits)), ramp)
    read_as(value.dtype, tensor)
    call.release(*reversed(held))


def _in_front(shape, places) -> torch.Tensor:
    """Returns a contiguous tensor with its indexed dims moved first (IndexingUtils.h, transposeToFront)."""
    others = [dim for dim in range(len(shape)) if dim not in places]
    return torch.empty(shape, device="meta").permute(*places, *others)


def _linear_term(call: OpCall, index, on_host: bool, trusted: bool):
    """Allocates an index times the stride of its dim, computed where the index is."""
    n = index.numel()
    if on_host:
        return call.scratch(n * 8)
    if n and not trusted:
        _check_bounds(call, index)
    wrapped = call.scratch(n * 8)
    term = call.scratch(n * 8)
    call.release(wrapped)
    return term


def _check_bounds(call: OpCall, index) -> None:
    """Allocates for comparing the largest and the smallest index with the dim's size.

    Up to torch 2.12 it does so one after the other.
    """
    together = call.machine.torch_version >= (2, 13)
    for found in ((8, 8),) if together else ((8,), (8,)):
        extremes = [call.scratch(size) for size in found]
        copy = call.contiguous(index)
        reduce_all(call, index.numel(), torch.int64, sum(found))
        call.release(*copy)
        for _ in found:
            call.release(call.scratch(1))
        call.release(*extremes)


def _in_parts(tensor, shifts, dims=()) -> bool:
    return (len(shifts) == 1 and not dims) or len(shifts) == len(dims) > 1


@decomposition("roll.default", when=_in_parts)
def roll_in_parts(tensor, shifts, dims=()):
    """Decomposes roll_common: flattened without a dim, or dim by dim.

    (aten/src/ATen/native/TensorTransformations.h)
    """
    if not dims:
        return tensor.contiguous().view(-1).roll(shifts[0], 0).view(tensor.shape)
    return tensor.roll(shifts[0], dims[0]).roll(shifts[1:], dims[1:])


@rule("roll.default")
def roll(call: OpCall) -> None:
    """Rule of roll_cuda, which reads a contiguous tensor (aten/src/ATen/native/cuda/TensorTransformations.cu)."""
    call.contiguous(call["self"])
    call.allocate_outputs(*call.outputs)


@rule("unfold_backward.default")
def unfold_backward(call: OpCall) -> None:
    """Rule of unfold_backward: a copy if windows do not overlap, else indices of the elements that windows reach.

    (aten/src/ATen/native/UnfoldBackward.cpp, UnfoldBackward.h)
    """
    grad, sizes, dim, size, step = call["grad_in", "input_sizes", "dim", "size", "step"]
    call.allocate_outputs(*call.outputs)
    if step < size:
        reached = (grad.shape[dim] - 1) * step + size
        call.scratch(8 * min(sizes[dim], reached))


@rule("_padded_dense_to_jagged_forward.default")
def padded_to_jagged(call: OpCall) -> None:
    """Rule of the dense-to-jagged conversion: its own rows, then the result.

    (aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu)
    """
    (output,) = call.outputs
    rows = call.scratch_like(output)
    call.allocate_outputs(output)
    call.release(rows)


@rule("masked_scatter_.default")
def masked_scatter(call: OpCall) -> None:
    """Rule of masked_scatter__cuda: the number of selected elements before each, from a mask as large as the tensor.

    (aten/src/ATen/native/cuda/IndexKernel.cpp)
    """
    tensor, mask, source = call["self", "mask", "source"]
    if tensor.dtype != source.dtype:
        names = f"{name(tensor.dtype)} and {name(source.dtype)}"
        raise RuntimeError(f"masked_scatter_: expected self and source to have same dtypes but got {names}")
    n = tensor.numel()
    if n == 0:
        return
    call.scratch(n * 8)
    call.contiguous(mask.expand(tensor.shape))
    call.release(call.scratch(cub.scan(n, 8)))
    call.contiguous(source)


@rule("index_reduce.default", "index_reduce.out", "index_reduce_.default")
def index_reduce(call: OpCall) -> None:
    """Rule of index_reduce_func_cuda_impl: for a mean, how often each element is written.

    (aten/src/ATen/native/cuda/Indexing.cu)
    """
    call.allocate_outputs(*call.outputs)
    tensor, index, source, reduce = call["self", "index", "source", "reduce"]
    if not call["include_self"] and index.dtype != torch.int64:
        call.release(call.scratch_like(index, torch.int64))
    if reduce == "mean":
        call.scratch_like(tensor)
        call.release(call.scratch_like(source))
        call.release(call.scratch_like(tensor, torch.bool))


@rule("scatter_reduce.two")
def scatter_reduce(call: OpCall) -> None:
    """Rule of scatter_reduce_two: for a mean, how often each element is written.

    (aten/src/ATen/native/TensorAdvancedIndexing.cpp)
    """
    call.allocate_outputs(*call.outputs)
    tensor, index, source, reduce = call["self", "index", "src", "reduce"]
    if reduce == "mean" and index.numel():
        call.scratch_like(source)
        call.scratch_like(tensor)
        call.release(call.scratch_like(tensor, torch.bool))


@decomposition("repeat_interleave.Tensor")
def repeat_interleave(repeats, *, output_size=None):
    """Decomposes repeat_interleave_common: the cumulative sum of the repeats; its last element is the size.

    If the caller gives the size, the last element is not read. Otherwise no repeat may be negative
    (aten/src/ATen/native/Repeat.h).
    """
    if repeats.numel() == 0:
        return torch.empty_like(repeats)
    copy = repeats.contiguous()
    ends = repeats.cumsum(0)
    size = output_size
    if size is None:
        size = ends[-1].item()
        _check_not_negative(repeats)
    result = torch.empty((size,), dtype=repeats.dtype, device=repeats.device)
    del ends, copy
    return result


def _check_not_negative(repeats) -> None:
    """Raises RuntimeError if a repeat is negative (aten/src/ATen/native/Repeat.h)."""
    each = repeats >= 0
    every = each.all()
    if not every.item() and machines.on().placeholder_values is None:
        raise RuntimeError("repeats can not be negative")
    del every, each


@preprocess_args("as_strided_.default", when=lambda *args, **kwargs: True)
def within_its_storage(tensor, *args):
    """Checks as_strided_ like the view (aten/src/ATen/native/TensorShape.cpp, as_strided__symint)."""
    layout.check_bounds(tensor, *args)
    return (tensor, *args)
