"""Selecting by a mask: how much it selects depends on its values, so they have to be known, or nothing is selected."""

import torch

from simgpu import machine as machines
from simgpu.kernels import cub
from simgpu.kernels.launch import Launch, made_of_others, prepared, rule
from simgpu.tensors import residence, values

_aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)
MOST_AT_ONCE = 2**31 - 1


def is_known(mask: torch.Tensor) -> bool:
    """Whether a mask of the GPU or of the host has values."""
    return residence.of(mask) is None or values.of(mask) is not None


def is_answered(mask: torch.Tensor) -> bool:
    """Whether nonzero() of a mask has an answer: its values are known, or there are stand-ins for them."""
    return machines.on().stand_ins is not None or is_known(mask)


@rule("nonzero.default")
def nonzero(launch: Launch) -> None:
    """aten/src/ATen/native/cuda/Nonzero.cu, nonzero_cuda_out_impl: counts them, then selects their indices."""
    tensor, spec = launch.first, launch.machine.spec
    chunk = tensor.numel() if tensor.numel() < MOST_AT_ONCE else 2**30
    sizes = [min(chunk, tensor.numel() - begin) for begin in range(0, tensor.numel(), chunk or 1)] or [0]
    launch.contiguous(tensor)
    launch.scratch(4 * len(sizes))
    for n in sizes:
        launch.release(launch.scratch(cub.reduction_to_int(n, spec)))
    launch.give(*launch.outputs)
    for n in sizes if tensor.dim() else ():
        launch.release(launch.scratch(cub.select_flagged(n, spec)))


def _has_masks(tensor, indices, *rest, **named) -> bool:
    return any(index is not None and index.dtype in MASKS for index in indices)


class OfMasks(list):
    """Indices, and what nonzero() gave for the masks among them: `places`, which nothing else holds."""

    def __init__(self):
        super().__init__()
        self.places: list[torch.Tensor] = []


def _check_shape(tensor, first: int, mask) -> None:
    """The same file, invalid_mask: IndexError where a mask of the dims from `first` on has other sizes than they do."""
    for dim in range(mask.dim()):
        if mask.shape[dim] != tensor.size(first + dim):
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {dim} does not match the shape of the indexed "
                f"tensor {list(tensor.shape)} at index {first + dim}"
            )


def _indices(tensor, indices) -> OfMasks:
    """aten/src/ATen/native/IndexingUtils.h, expandTensors: the columns of nonzero() in each mask's place."""
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


@prepared("index.Tensor", when=_has_masks)
def index(tensor, indices):
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp, make_info."""
    if not all(index is None or index.dtype not in MASKS or is_answered(index) for index in indices):
        return tensor, indices  # the size is not known: an error that says so
    return tensor, _indices(tensor, indices)


def _fills(indices, value, accumulate) -> bool:
    """canDispatchToMaskedFill: one number of the host where a mask of the GPU says so."""
    given = [index for index in indices if index is not None]
    if accumulate or value.numel() != 1 or residence.on_gpu(value) or len(given) != 1:
        return False
    return given[0].dtype in MASKS and residence.on_gpu(given[0])


@prepared("index_put.default", "index_put_.default", "_index_put_impl_.default", when=_has_masks)
def index_put(tensor, indices, value, accumulate=False, *unsafe, **named):
    """The same file, _index_put_impl_: a number of the host is brought over before the masks are looked at."""
    rest = (value, accumulate, *unsafe)
    if _fills(indices, value, accumulate):
        place = next(i for i, one in enumerate(indices) if one is not None)
        _check_shape(tensor, place, indices[place])
        if indices[place].dtype == torch.uint8:  # aten/src/ATen/native/cuda/IndexKernel.cpp, masked_fill__cuda
            raise RuntimeError("masked_fill only supports boolean masks, but got dtype Byte")
        return tensor, indices, *rest
    if not all(index is None or index.dtype not in MASKS or is_known(index) for index in indices):
        machines.on().left_out.add("aten::index_put_ by a mask", "the indices that a mask without values becomes")
        return tensor, indices, *rest
    if value.dim() == 0 and not residence.on_gpu(value):
        value = _aten._to_copy.default(value, device=tensor.device)
    return tensor, _indices(tensor, indices), value, accumulate, *unsafe


@made_of_others("index_put.default", when=_has_masks)
def index_put_to_copy(tensor, indices, value, accumulate=False):
    """The same file, index_put: a copy, in which it is done in place."""
    return _aten.index_put_.default(tensor.clone(), indices, value, accumulate)


@made_of_others("masked_select.default", when=lambda tensor, mask: is_answered(mask))
def masked_select(tensor, mask):
    """aten/src/ATen/native/cuda/IndexKernel.cpp, masked_select_out_cuda_impl."""
    mask, tensor = torch.broadcast_tensors(*(one.unsqueeze(0) if one.dim() == 0 else one for one in (mask, tensor)))
    return _aten.index.Tensor(tensor, [mask])


# aten/src/ATen/native/TensorAdvancedIndexing.cpp: masked_select, and zeros after it up to the source's size.
made_of_others("masked_scatter_backward.default", when=lambda grad, mask, sizes: is_known(mask))


@rule("masked_scatter_backward.default", only=True)
def masked_scatter_backward(launch: Launch) -> None:
    """The same where the mask has no values."""
    launch.machine.left_out.add("the gradient of masked_scatter", "what selecting by a mask without values takes")
