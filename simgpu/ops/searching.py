"""Rules for searching: sorted boundaries, histograms, membership, nonzero elements."""

from math import ceil

import torch

from simgpu.op_info.inplace_out_variants import resized
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.ops.reduction_scratch import reduce

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
