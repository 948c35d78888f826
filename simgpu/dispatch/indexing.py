"""Implements `tensor[index]` and `tensor[index] = value` as PyTorch's C++ does before it calls operators.

Source: torch/csrc/autograd/python_variable_indexing.cpp. It converts lists to tensors in the device's memory, which for
a meta tensor would have no values.
"""

import torch

from simgpu.dispatch import host_copies
from simgpu.distributed import sync_batch_norm
from simgpu.handlers import handles
from simgpu.storage.storage_map import CPU, on_gpu

Tensor = torch.Tensor


def _of_numbers(item) -> bool:
    """Returns whether an index is a list of integers or bools, nested or not."""
    if not isinstance(item, (list, tuple, range)) or not len(item):
        return False
    return all(isinstance(one, int) or _of_numbers(one) for one in item)


def _with_lists_on_gpu(mode, index):
    """Converts lists of numbers in an index to tensors on the GPU, as C++ does (sequenceToVariable)."""

    def moved(item):
        if not _of_numbers(item):
            return item
        return host_copies.to_gpu(mode.dispatch, torch.tensor(item, device=CPU))

    if isinstance(index, tuple):
        lists = any(type(item) in (list, tuple, range) for item in index)
        return tuple(map(moved, index)) if lists else index
    if isinstance(index, list) and len(index) < 32 and not all(isinstance(one, int) for one in index):
        return tuple(map(moved, index)) if any(map(_of_numbers, index)) else index  # treatSequenceAsTuple
    return moved(index)


@handles(Tensor.__getitem__)
def get_item(mode, function, args, kwargs):
    tensor, index = args
    if isinstance(index, (tuple, list, range)) and on_gpu(tensor):
        index = _with_lists_on_gpu(mode, index)
    elif isinstance(index, Tensor) and index.dtype == torch.bool:
        sync_batch_norm.know(index)
    return function(tensor, index)


@handles(Tensor.__setitem__)
def set_item(mode, function, args, kwargs):
    """Assigns to a slice; a Python number stays on the host, as on CUDA."""
    tensor, index, value = args
    if on_gpu(tensor):
        index = _with_lists_on_gpu(mode, index)
        if isinstance(value, (int, float, complex)):
            value = torch.tensor(value, dtype=tensor.dtype, device=CPU)
    return function(tensor, index, value)
