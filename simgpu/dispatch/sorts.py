"""Counts the bytes that sorting and selecting move, because their kernels pass over memory several times.

Sorting (aten/src/ATen/native/cuda/SortStable.cu) is CUB's radix sort, with 8 bits of the key per pass. Each pass reads
and writes keys and indices, after one pass that counts digits (CCCL, cub/device/dispatch/tuning/tuning_radix_sort.cuh,
ONESWEEP_RADIX_BITS). In segmented sorts each pass reads twice, and rows that are sorted in shared memory are read and
written once. The largest k of long rows (TensorTopK.cu, mbtopk) need a pass per 8 bits, and one that gathers.
`kthvalue` and `median` along a dim (SortingRadixSelect.cuh, RADIX_BITS) need a pass per 2 bits, and two that count and
find. There, one block on one multiprocessor processes a row, so it reaches only its share of the bandwidth.
"""

from math import ceil, log2

import torch

from simgpu.gpus.specs import Spec
from simgpu.op_info import arguments
from simgpu.ops.sorting import FEW_SEGMENTS, LARGE_SEGMENT, SHORT, bits_of_permutation, by_many_blocks

INDEX = 8


def _rows(tensor: torch.Tensor, dim: int) -> tuple[int, int]:
    """Returns the number of rows along a dim, and their length."""
    length = tensor.shape[dim] if tensor.dim() else 1
    return (tensor.numel() // length if length else 0), length


def _sorted(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    count, key = tensor.numel(), tensor.element_size()
    pair = key + INDEX
    if length <= SHORT or not count:
        return 2 * count * pair
    if rows == 1 or length >= LARGE_SEGMENT:
        return count * (INDEX + key + 2 * key * pair)
    if rows < FEW_SEGMENTS:
        by_row = 2 * INDEX * ceil(log2(rows) / 8)
        return count * (INDEX + key + 2 * key * pair + INDEX + by_row + INDEX + key + pair)
    return count * (INDEX + 3 * key * pair)


def _largest(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    passes = tensor.element_size() + 1 if by_many_blocks(rows, length) else 1
    return passes * tensor.nbytes


def _one_of_each_row(spec: Spec, tensor: torch.Tensor, dim: int) -> int:
    rows, length = _rows(tensor, dim)
    passes = 4 * tensor.element_size() + 2 if length > SHORT else 1
    return passes * tensor.nbytes * spec.multiprocessors // max(1, min(rows, spec.multiprocessors))


_ALONG_A_DIM = {"sort": _sorted, "topk": _largest, "kthvalue": _one_of_each_row, "median": _one_of_each_row}
_ALONG_A_DIM["nanmedian"] = _one_of_each_row
OPERATORS = {*_ALONG_A_DIM, "randperm"}
"""The operators whose bytes `moved` counts."""


def moved(spec: Spec, name: str, operator, args, kwargs, outputs) -> int:
    """Returns the bytes that take as long to move as the kernels of a call of one of `OPERATORS`, with its outputs."""
    results = sum(one.nbytes for one in outputs if isinstance(one, torch.Tensor))
    if name == "randperm":
        n, element = outputs[0].numel(), outputs[0].element_size()
        if not n:
            return 0
        bits = bits_of_permutation(n)
        key = 4 if bits <= 32 else 8
        return n * (element + 3 * key + 2 * ceil(bits / 8) * (key + element))
    tensor = arguments.given(operator, "self", args, kwargs)
    dim = arguments.given(operator, "dim", args, kwargs) if arguments.has(operator, "dim") else -1
    found = _ALONG_A_DIM[name](spec, tensor, dim)
    return found if name == "sort" else found + results
