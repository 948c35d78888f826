"""Reading and writing by index."""

from math import ceil

import torch

from simgpu import machine as machines
from simgpu.kernels import cub
from simgpu.kernels.launch import Launch, made_of_others, prepared, rule
from simgpu.kernels.reduction_scratch import reduce_all
from simgpu.kernels.scalar_types import legacy_name, name, read_as
from simgpu.tensors import bounds, residence
from simgpu.tensors.overlaps import refuse_within

ROWS_PER_PARTIAL = 10  # EmbeddingBackwardKernel.cu, NROWS_PER_THREAD
MAX_THREADS = 1024  # EmbeddingBackwardKernel.cu, MAX_BLOCK_SIZE
ATOMIC_BLOCKS = 4  # of threads on a multiprocessor: EmbeddingBackwardKernel.cu, MAX_ATOMIC_ACCUM_BLOCKS_PER_SM
INDICES = {torch.int64, torch.int32, torch.bool, torch.uint8}
FEW_INDICES = 3072  # up to which Embedding.cu, embedding_dense_backward_cuda, does not sort

# aten/src/ATen/native/Embedding.cpp: index_select of the flattened indices, which are copied if they are no flat view.
made_of_others("embedding.default")


@rule("embedding_dense_backward.default")
def embedding_backward(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda: many indices are sorted first."""
    grad, indices, weights = launch["grad_output", "indices", "num_weights"]
    padding, by_frequency = launch["padding_idx", "scale_grad_by_freq"]
    launch.contiguous(indices, grad)
    n, index = indices.numel(), indices.element_size()
    if n <= FEW_INDICES and not by_frequency:
        return
    sort_indices(launch, n, index, weights if padding >= 0 else weights - 1 - padding)
    if by_frequency:
        count_equal(launch, n, index)
    sum_by_index(launch, grad, n, index, weights, atomically=True)


def sort_indices(launch: Launch, n: int, index: int, largest: int) -> None:
    """Scratch for `n` indices of `index` bytes, the largest of them `largest`, sorted and with where each was."""
    launch.scratch(n * index)
    launch.scratch(n * index)
    ramp = launch.scratch(n * index)
    bits = None
    if launch.machine.torch_version >= (2, 13):  # before, all bits of an index are sorted by
        bits = max(largest, 1).bit_length()
    launch.release(launch.scratch(cub.radix_sort(n, index, index, launch.machine.spec, bits)), ramp)


def count_equal(launch: Launch, n: int, index: int) -> None:
    """Scratch for how often each of `n` sorted indices of `index` bytes occurs, and for counting it: upwards, then the
    maximum downwards."""
    launch.scratch(n * index)
    for _ in range(2):
        launch.release(launch.scratch(cub.scan_by_key(n, index, launch.machine.spec)))


def sum_by_index(launch: Launch, grad, n: int, index: int, weights: int, atomically: bool) -> None:
    """EmbeddingBackwardKernel.cu, embedding_backward_cuda_kernel: the rows of `grad` with one index are summed in
    parts of 10 rows, and the parts into the gradient of the weights, the output; atomically where parts are few.

    `n` sorted indices of `index` bytes into `weights` rows.
    """
    (output,) = launch.outputs
    spec = launch.machine.spec
    launch.give(output)
    launch.scratch(n * index)  # where the segments of equal indices begin
    launch.scratch(8)  # how many
    keys = launch.scratch(n * index)
    unique = launch.scratch(cub.unique_by_key(n, index, spec, launch.machine.torch_version))
    launch.release(unique, keys)
    segments = min(n, weights)
    launch.scratch(segments * index)  # parts of each segment
    launch.scratch(segments * index)  # where they begin
    launch.release(launch.scratch(cub.scan(segments, index)))
    launch.scratch(8)  # how many parts
    parts = n // ROWS_PER_PARTIAL + segments
    launch.scratch(parts * index)
    row = output.shape[-1]
    accumulator = torch.float32 if grad.dtype.itemsize < 4 else grad.dtype
    threads = -(-row // 32) * 32
    blocks = ceil(segments * threads / min(threads, MAX_THREADS)) if row else 0
    few = blocks < spec.multiprocessors * ATOMIC_BLOCKS and parts > 4 * blocks
    if atomically and few and not torch.are_deterministic_algorithms_enabled():
        launch.scratch(parts * index)  # the segment of each part
        if accumulator != grad.dtype:
            launch.scratch_like(output, accumulator)
    else:
        launch.scratch(parts * row * accumulator.itemsize)


def _on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is the host's: one with values, or one that was copied there from the GPU."""
    return not residence.on_gpu(tensor)


def _brought(index: torch.Tensor) -> torch.Tensor:
    """An index as it lies on the device."""
    return torch.empty_like(index, device="meta") if _on_host(index) else index


def _depends_on_values(indices) -> bool:
    """Whether there are masks left among the indices, because they fill or their values are not known."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


@rule("index.Tensor")
def index(launch: Launch) -> None:
    """aten/src/ATen/native/TensorAdvancedIndexingUtils.h, make_info. Masks are indices by now (see selection.py). The
    iterator owns what is made of the indices, and lets the last one go first."""
    made = _made_indices(launch, launch["indices"])
    launch.give(*launch.outputs)
    launch.release(*reversed(made))


def _made_indices(launch: Launch, indices) -> list:
    """TensorAdvancedIndexingUtils.h, make_info: what is made of each index that is given, a block or None.

    IndexingUtils.h, expandTensors, brings each over as it lies on the host; then they are broadcast, made int64, and in
    the constructor of AdvancedIndex contiguous if several lie otherwise than one another.
    """
    given = [one for one in indices if one is not None]
    blocks = [launch.scratch_like(one) if _on_host(one) else None for one in given]
    given = list(torch.broadcast_tensors(*map(_brought, given)))
    for place, one in enumerate(given):
        if one.dtype == torch.int32:
            converted = launch.scratch_like(one, torch.int64)
            launch.release(blocks[place])
            blocks[place] = converted
            given[place] = torch.empty_like(one, dtype=torch.int64, device="meta")
    if len({one.stride() for one in given}) > 1:
        copies = launch.contiguous(*given)
        launch.release(*(block for block, copy in zip(blocks, copies, strict=True) if copy is not None))
        blocks = [block if copy is None else copy for block, copy in zip(blocks, copies, strict=True)]
    return blocks


@rule("index_put.default", "index_put_.default", "_index_put_impl_.default")
def index_put(launch: Launch) -> None:
    """TensorAdvancedIndexing.cpp, index_put and _index_put_impl_: a copy of the tensor if it is not written in place;
    with `accumulate`, by sorting."""
    (tensor,) = launch.outputs
    launch.give(tensor)
    indices, value = launch["indices", "values"]
    if len(indices) > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()} (got {len(indices)})")
    if _on_host(value) and value.dim() == 0:
        if _depends_on_values(indices):
            return  # masked_fill_
        launch.scratch(value.element_size())
    if any(index is not None and index.dtype not in INDICES for index in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if _depends_on_values(indices):
        _check_same(tensor, value)
        return
    if launch["accumulate"] or torch.are_deterministic_algorithms_enabled():
        node = torch._C._current_autograd_node()
        trusted = launch.get("unsafe") or (node is not None and node.name() == "IndexBackward0")
        _put_by_sorting(launch, tensor, indices, value, trusted)
        refuse_within(tensor)  # the copy_ back
    else:
        made = _made_indices(launch, indices)
        shape = _chosen(tensor, indices)
        if not _expands_to(value.shape, shape):
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of "
                f"shape {list(shape)}"
            )
        _check_same(tensor, value)
        launch.release(*made)  # AdvancedIndex has them in a vector, which lets the first one go first


def _check_same(tensor, value) -> None:
    """The same file, make_index_put_iterator: what is written has the dtype of what it is written into."""
    if tensor.dtype != value.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {name(tensor.dtype)} for the destination "
            f"and {name(value.dtype)} for the source."
        )


def _chosen(tensor, indices) -> torch.Size:
    """The shape of tensor[indices]: what the indices choose stands in their place, or first if they are apart."""
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
    """aten/src/ATen/ExpandUtils.h, is_expandable_to."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


def _check_expands(value, shape) -> None:
    """RuntimeError, as of CUDA's tensors, where a value does not fit what is chosen."""
    try:
        value.expand(shape)
    except RuntimeError as error:
        raise RuntimeError(str(error).replace(f"Meta{name(value.dtype)}Type", legacy_name(value.dtype))) from None


def _put_by_sorting(launch: Launch, tensor, indices, value, trusted: bool) -> None:
    """aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel: the indices are made linear and sorted.
    `trusted`: they have been looked at before, in the forward pass."""
    launch.contiguous(tensor)
    given = [index for index in indices if index is not None]
    on_host = [_on_host(one) for one in given]
    converted = []
    for place, one in enumerate(given):
        if one.dtype == torch.int32 and not on_host[place]:
            converted.append(launch.scratch_like(one, torch.int64))
            given[place] = torch.empty_like(one, dtype=torch.int64)
    given = torch.broadcast_tensors(*given)
    n = given[0].numel()
    linear, *further = given
    linear_block = _linear_term(launch, linear, on_host[0], trusted)
    for one, there in zip(further, on_host[1:], strict=True):
        launch.release(_linear_term(launch, one, there, trusted))
    launch.release(*converted)
    for made in getattr(indices, "places", ()):  # of masks (selection.py): makeLinearIndex drops them
        place = residence.of(made)
        if place is not None:
            residence.vacate(place)
    places = [place for place, one in enumerate(indices) if one is not None]
    adjacent = places[-1] - places[0] < len(places)
    sizes = [size for place, size in enumerate(tensor.shape) if place not in places]
    after = tensor.shape[places[-1] + 1 :] if adjacent else sizes
    slice_size = torch.Size(after).numel()
    count = n * torch.Size(sizes).numel()
    held = []
    _check_expands(value, _chosen(tensor, indices))
    if value.numel() < count or not value.is_contiguous():
        held.append(launch.scratch(count * value.element_size()))
    if n == 0 or slice_size == 0:
        return
    if not adjacent and not _in_front(tensor.shape, places).is_contiguous():
        held.append(launch.scratch_like(tensor))
    if not torch.empty_like(linear).is_contiguous():
        held.insert(0, launch.scratch(n * 8))  # takes the place of the linear index, made flat
        launch.release(linear_block)
    held += launch.scratch(n * 8), launch.scratch(n * 8)  # the indices sorted, and where each was
    ramp = launch.scratch(n * 8)
    bits = max((tensor.numel() - 1) // slice_size, 1).bit_length()
    launch.release(launch.scratch(cub.radix_sort(n, 8, 8, launch.machine.spec, bits)), ramp)
    read_as(value.dtype, tensor)
    launch.release(*reversed(held))


def _in_front(shape, places) -> torch.Tensor:
    """aten/src/ATen/native/IndexingUtils.h, transposeToFront: a contiguous tensor with its indexed dims moved first."""
    others = [dim for dim in range(len(shape)) if dim not in places]
    return torch.empty(shape, device="meta").permute(*places, *others)


def _linear_term(launch: Launch, index, on_host: bool, trusted: bool):
    """An index times the stride of its dim, computed where the index is."""
    n = index.numel()
    if on_host:
        return launch.scratch(n * 8)
    if n and not trusted:
        _check_bounds(launch, index)
    wrapped = launch.scratch(n * 8)
    term = launch.scratch(n * 8)
    launch.release(wrapped)
    return term


def _check_bounds(launch: Launch, index) -> None:
    """Compares the largest and the least index with the dim's size; up to torch 2.12 one after the other."""
    together = launch.machine.torch_version >= (2, 13)
    for found in ((8, 8),) if together else ((8,), (8,)):
        extremes = [launch.scratch(size) for size in found]
        copy = launch.contiguous(index)
        reduce_all(launch, index.numel(), torch.int64, sum(found))
        launch.release(*copy)
        for _ in found:
            launch.release(launch.scratch(1))
        launch.release(*extremes)


def _in_parts(tensor, shifts, dims=()) -> bool:
    return (len(shifts) == 1 and not dims) or len(shifts) == len(dims) > 1


@made_of_others("roll.default", when=_in_parts)
def roll_in_parts(tensor, shifts, dims=()):
    """aten/src/ATen/native/TensorTransformations.h, roll_common: flattened without a dim, or dim after dim."""
    if not dims:
        return tensor.contiguous().view(-1).roll(shifts[0], 0).view(tensor.shape)
    return tensor.roll(shifts[0], dims[0]).roll(shifts[1:], dims[1:])


@rule("roll.default")
def roll(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/TensorTransformations.cu, roll_cuda: reads a contiguous tensor."""
    launch.contiguous(launch["self"])
    launch.give(*launch.outputs)


@rule("unfold_backward.default")
def unfold_backward(launch: Launch) -> None:
    """aten/src/ATen/native/UnfoldBackward.cpp: where windows do not overlap, a copy. Else UnfoldBackward.h numbers the
    elements that windows reach."""
    grad, sizes, dim, size, step = launch["grad_in", "input_sizes", "dim", "size", "step"]
    launch.give(*launch.outputs)
    if step < size:
        reached = (grad.shape[dim] - 1) * step + size
        launch.scratch(8 * min(sizes[dim], reached))


@rule("_padded_dense_to_jagged_forward.default")
def padded_to_jagged(launch: Launch) -> None:
    """aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu: rows of their own, then the result."""
    (output,) = launch.outputs
    rows = launch.scratch_like(output)
    launch.give(output)
    launch.release(rows)


@rule("masked_scatter_.default")
def masked_scatter(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/IndexKernel.cpp, masked_scatter__cuda: how many are chosen before each element, counted
    from a mask as large as the tensor."""
    tensor, mask, source = launch["self", "mask", "source"]
    if tensor.dtype != source.dtype:
        names = f"{name(tensor.dtype)} and {name(source.dtype)}"
        raise RuntimeError(f"masked_scatter_: expected self and source to have same dtypes but got {names}")
    n = tensor.numel()
    if n == 0:
        return
    launch.scratch(n * 8)
    launch.contiguous(mask.expand(tensor.shape))
    launch.release(launch.scratch(cub.scan(n, 8)))
    launch.contiguous(source)


@rule("index_reduce.default", "index_reduce.out", "index_reduce_.default")
def index_reduce(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/Indexing.cu, index_reduce_func_cuda_impl: for a mean, how often each is written."""
    launch.give(*launch.outputs)
    tensor, index, source, reduce = launch["self", "index", "source", "reduce"]
    if not launch["include_self"] and index.dtype != torch.int64:
        launch.release(launch.scratch_like(index, torch.int64))
    if reduce == "mean":
        launch.scratch_like(tensor)
        launch.release(launch.scratch_like(source))
        launch.release(launch.scratch_like(tensor, torch.bool))


@rule("scatter_reduce.two")
def scatter_reduce(launch: Launch) -> None:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp, scatter_reduce_two: for a mean, how often each is written."""
    launch.give(*launch.outputs)
    tensor, index, source, reduce = launch["self", "index", "src", "reduce"]
    if reduce == "mean" and index.numel():
        launch.scratch_like(source)
        launch.scratch_like(tensor)
        launch.release(launch.scratch_like(tensor, torch.bool))


@made_of_others("repeat_interleave.Tensor")
def repeat_interleave(repeats, *, output_size=None):
    """aten/src/ATen/native/Repeat.h, repeat_interleave_common: where each one's copies end; the last end is the size,
    unless the caller says it, and then none may be negative."""
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
    """The same file: RuntimeError if one is."""
    each = repeats >= 0
    every = each.all()
    if not every.item() and machines.on().stand_ins is None:
        raise RuntimeError("repeats can not be negative")
    del every, each


@prepared("as_strided_.default", when=lambda *args, **kwargs: True)
def within_its_storage(tensor, *args):
    """aten/src/ATen/native/TensorShape.cpp, as_strided__symint: the same is asked as of a view."""
    bounds.check(tensor, *args)
    return (tensor, *args)
