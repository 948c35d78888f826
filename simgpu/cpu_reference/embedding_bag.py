"""Embedding bags, with what CUDA saves about each index and each bag (aten/src/ATen/native/cuda/EmbeddingBag.cu)."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl


@cpu_impl("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call):
    """Returns the bags, the bag of each index, the number of indices per bag, and the indices of the maxima."""
    if not call.outputs[0].numel():
        return [None] * 4  # without offsets the CPU's kernel reads past the end
    names = "weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights"
    found = call.operator(*call[names], *call["include_last_offset", "padding_idx"])
    indices, offsets = call["indices", "offsets"]
    bags = offsets[:-1] if call["include_last_offset"] else offsets
    places = torch.arange(indices.numel(), dtype=bags.dtype, device="cpu")
    bag_of_each = torch.searchsorted(bags.contiguous(), places, right=True) - 1
    counted = bag_of_each[indices != call["padding_idx"]]
    sizes = torch.bincount(counted, minlength=offsets.numel())
    return [found[0], bag_of_each, sizes, found[3] if call["mode"] == 2 else None]
