"""Rules for selecting by a mask. The size depends on its values, so they have to be known, or nothing is selected."""

import torch

from simgpu.device import machine as machines
from simgpu.ops import cub
from simgpu.ops.op_call import OpCall, decomposition, preprocess_args, rule
from simgpu.storage import storage_map, values

_aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)
MOST_AT_ONCE = 2**31 - 1


def is_known(mask: torch.Tensor) -> bool:
    """Returns whether a mask of the GPU or of the host has values."""
    return storage_map.of(mask) is None or values.of(mask) is not None


def is_answered(mask: torch.Tensor) -> bool:
    """Returns whether nonzero() of a mask has a result: its values are known, or there are placeholder values."""
    return machines.on().placeholder_values is not None or is_known(mask)


@rule("nonzero.default")
def nonzero(call: OpCall) -> None:
    """Rule of nonzero_cuda_out_impl: counts the elements, then selects their indices (Nonzero.cu)."""
    tensor, spec = call.first, call.machine.spec
    chunk = tensor.numel() if tensor.numel() < MOST_AT_ONCE else 2**30
    sizes = [min(chunk, tensor.numel() - begin) for begin in range(0, tensor.numel(), chunk or 1)] or [0]
    call.contiguous(tensor)
    call.scratch(4 * len(sizes))
    for n in sizes:
        call.release(call.scratch(cub.reduction_to_int(n, spec)))
    call.allocate_outputs(*call.outputs)
    for n in sizes if tensor.dim() else ():
        call.release(call.scratch(cub.select_flagged(n, spec)))


def _has_masks(tensor, indices, *rest, **named) -> bool:
    return any(index is not None and index.dtype in MASKS for index in indices)


class OfMasks(list):
    """Indices, with nonzero()'s results for the masks among them (`places`), which nothing else holds."""

    def __init__(self):
        super().__init__()
        self.places: list[torch.Tensor] = []


def _check_shape(tensor, first: int, mask) -> None:
    """Raises IndexError if a mask's shape differs from that of the dims from `first` on (IndexingUtils.h,
    invalid_mask).
    """
    for dim in range(mask.dim()):
        if mask.shape[dim] != tensor.size(first + dim):
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {dim} does not match the shape of the indexed "
                f"tensor {list(tensor.shape)} at index {first + dim}"
            )


def _indices(tensor, indices) -> OfMasks:
    """Returns the indices with each mask replaced by the columns of nonzero() (IndexingUtils.h, expandTensors)."""
    found = OfMasks()
    for index in indices:
        if index is None or index.dtype not in MASKS:
            found.append(index)
        else:
            _check_shape(tensor, len(found), index)
            places = _aten.nonzero.default(index)
            found.places.append(places)
            found += [_aten.select.int(places, 1, dim) for dim in range(index.dim())]
    return found


@preprocess_args("index.Tensor", when=_has_masks)
def index(tensor, indices):
    """Converts masks as make_info does (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    if not all(index is None or index.dtype not in MASKS or is_answered(index) for index in indices):
        return tensor, indices  # the size is unknown, so an error says that
    return tensor, _indices(tensor, indices)


def _fills(indices, value, accumulate) -> bool:
    """Returns whether a mask of the GPU is filled with one number of the host (canDispatchToMaskedFill)."""
    given = [index for index in indices if index is not None]
    if accumulate or value.numel() != 1 or storage_map.on_gpu(value) or len(given) != 1:
        return False
    return given[0].dtype in MASKS and storage_map.on_gpu(given[0])


@preprocess_args("index_put.default", "index_put_.default", "_index_put_impl_.default", when=_has_masks)
def index_put(tensor, indices, value, accumulate=False, *unsafe, **named):
    """Converts masks as _index_put_impl_ does, after copying a number of the host to the GPU.

    (aten/src/ATen/native/TensorAdvancedIndexing.cpp)
    """
    rest = (value, accumulate, *unsafe)
    if _fills(indices, value, accumulate):
        place = next(i for i, one in enumerate(indices) if one is not None)
        _check_shape(tensor, place, indices[place])
        if indices[place].dtype == torch.uint8:  # aten/src/ATen/native/cuda/IndexKernel.cpp, masked_fill__cuda
            raise RuntimeError("masked_fill only supports boolean masks, but got dtype Byte")
        return tensor, indices, *rest
    if not all(index is None or index.dtype not in MASKS or is_known(index) for index in indices):
        machines.on().unmodeled.add("aten::index_put_ by a mask", "the indices that a mask without values becomes")
        return tensor, indices, *rest
    if value.dim() == 0 and not storage_map.on_gpu(value):
        value = _aten._to_copy.default(value, device=tensor.device)
    return tensor, _indices(tensor, indices), value, accumulate, *unsafe


@decomposition("index_put.default", when=_has_masks)
def index_put_to_copy(tensor, indices, value, accumulate=False):
    """Decomposes index_put: a copy, which is then updated in place (TensorAdvancedIndexing.cpp)."""
    return _aten.index_put_.default(tensor.clone(), indices, value, accumulate)


@decomposition("masked_select.default", when=lambda tensor, mask: is_answered(mask))
def masked_select(tensor, mask):
    """Decomposes masked_select_out_cuda_impl (aten/src/ATen/native/cuda/IndexKernel.cpp)."""
    mask, tensor = torch.broadcast_tensors(*(one.unsqueeze(0) if one.dim() == 0 else one for one in (mask, tensor)))
    return _aten.index.Tensor(tensor, [mask])


# aten/src/ATen/native/TensorAdvancedIndexing.cpp: masked_select, and zeros after it up to the source's size.
decomposition("masked_scatter_backward.default", when=lambda grad, mask, sizes: is_known(mask))


@rule("masked_scatter_backward.default", only=True)
def masked_scatter_backward(call: OpCall) -> None:
    """Reports the gradient of masked_scatter as not modelled if the mask has no values."""
    call.machine.unmodeled.add("the gradient of masked_scatter", "what selecting by a mask without values takes")
