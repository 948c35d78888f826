"""Rules for embedding bags: rows of a table summed, averaged or maximised per bag.

Source: aten/src/ATen/native/cuda/EmbeddingBag.cu.
"""

import torch

from simgpu.checks.scalar_types import not_implemented
from simgpu.ops.indexing import count_equal, sort_indices, sum_by_index
from simgpu.ops.op_call import OpCall, decomposition, rule

MAX = 2  # at::native::EmbeddingBagMode


def _promote(call: OpCall, indices, offsets) -> None:
    """Allocates scratch for indices or offsets that are not of the wider of their dtypes (promoteIndicesAndOffsets)."""
    index = torch.promote_types(indices.dtype, offsets.dtype)
    for given in (indices, offsets):
        if given.dtype != index:
            call.scratch_like(given, index)


@rule("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(call: OpCall) -> None:
    """Rule of _embedding_bag_cuda: indices and offsets in the wider of their dtypes, then outputs in a different
    order.
    """
    _promote(call, *call["indices", "offsets"])
    output, offset_to_bag, bag_size, max_indices = call.outputs
    call.allocate_outputs(bag_size, offset_to_bag, output, max_indices)


def _dense(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, by_frequency, mode, sparse, *more
):
    return not sparse


@decomposition("_embedding_bag_backward.default", when=_dense)
def embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, by_frequency, mode, sparse, *more
):
    """Decomposes _embedding_bag_backward: converts again (aten/src/ATen/native/EmbeddingBag.cpp)."""
    index = torch.promote_types(indices.dtype, offsets.dtype)
    indices, offsets = indices.to(index), offsets.to(index)
    options = (num_weights, by_frequency, mode, *more)
    return torch.ops.aten._embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, *options)


@rule("_embedding_bag_dense_backward.default")
def dense_backward(call: OpCall) -> None:
    """Rule of _embedding_bag_dense_backward_cuda: a contiguous gradient; atomic additions for a maximum, else a sort.

    For sums all indices are sorted.
    """
    grad, indices, weights = call["grad", "indices", "num_weights"]
    call.contiguous(grad)
    n, index = indices.numel(), indices.element_size()
    if call["mode"] == MAX or n == 0:
        call.allocate_outputs(*call.outputs)
        if n and grad.dtype == torch.bfloat16:
            raise NotImplementedError("\"embedding_bag_backward_cuda_max\" not implemented for 'BFloat16'")
        return
    sort_indices(call, n, index, weights)
    if call["scale_grad_by_freq"]:
        count_equal(call, n, index)
    sum_by_index(call, grad, n, index, weights, atomically=False)


@rule("_embedding_bag_per_sample_weights_backward.default")
def weights_backward(call: OpCall) -> None:
    """Rule of _embedding_bag_per_sample_weights_backward_cuda."""
    _promote(call, *call["indices", "offsets"])
    (output,) = call.outputs
    if output.dtype == torch.bfloat16:
        call.scratch_like(output)
        not_implemented("_embedding_bag_per_sample_weights_backward_cuda", output.dtype)
    call.allocate_outputs(output)


@rule("_embedding_bag_per_sample_weights_backward.default", since=(2, 13))
def weights_backward_of_all_dtypes(call: OpCall) -> None:
    """Rule of _embedding_bag_per_sample_weights_backward_cuda, which has bfloat16 too."""
    _promote(call, *call["indices", "offsets"])
    call.allocate_outputs(*call.outputs)
