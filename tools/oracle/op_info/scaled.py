"""Large samples out of small ones: the sizes at which kernels change their way, and with it their scratch.

A small sample's sizes are replaced by larger ones, the same by the same, so that what fitted together still does: all
of them, only that of the last dimension, only that of the first. Numbers among the arguments that are sizes (a shape, a
split) are replaced with them, or are not: what PyTorch takes is compared. All values are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch

from tools.oracle.op_info.moving import tensors_in, text_of

ELEMENTS = 3_000_000  # about so many has the largest tensor of a sample


def larger(sample) -> Iterator[SimpleNamespace]:
    """The samples made of a small one; those that PyTorch refuses are left out by whoever runs them."""
    given = (sample.input, tuple(sample.args), dict(sample.kwargs))
    tensors = [one for one in tensors_in(given) if one.layout is torch.strided]
    if not tensors or max(one.numel() for one in tensors) < 2:
        return
    seen = set()
    for sizes in _maps(tensors):
        for numbers_too in (True, False):
            first, args, kwargs = _replaced(given, sizes, numbers_too)
            if (text := text_of((first, args, kwargs))) not in seen:
                seen.add(text)
                yield SimpleNamespace(
                    input=first, args=args, kwargs=kwargs, broadcasts_input=getattr(sample, "broadcasts_input", False)
                )


def _maps(tensors: list[torch.Tensor]) -> Iterator[dict[int, int]]:
    largest = max(tensors, key=torch.Tensor.numel)
    sizes = sorted({size for one in tensors for size in one.shape if size > 1})
    yield _grown(tensors, sizes)
    if largest.shape[-1] > 1:
        yield _grown(tensors, [largest.shape[-1]])
    if largest.dim() > 1 and largest.shape[0] > 1 and largest.shape[0] != largest.shape[-1]:
        yield _grown(tensors, [largest.shape[0]])


def _grown(tensors: list[torch.Tensor], sizes: list[int]) -> dict[int, int]:
    """These sizes times the largest factor, odd ones among them, that keeps every tensor below ELEMENTS."""
    fits = {size: size for size in sizes}
    factor = 2
    while factor < ELEMENTS:
        trial = {size: size * factor + (factor & 1) for size in sizes}
        if any(_elements(one.shape, trial) > ELEMENTS for one in tensors):
            break
        fits = trial
        factor = factor * 5 // 4 + 1
    return fits


def _elements(shape, sizes: dict[int, int]) -> int:
    count = 1
    for size in shape:
        count *= sizes.get(size, size)
    return count


def _replaced(value, sizes: dict[int, int], numbers_too: bool):
    if isinstance(value, torch.Tensor):
        return _tensor(value, sizes)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(one, sizes, numbers_too) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(one, sizes, numbers_too) for one in value)
    if isinstance(value, dict):
        return {key: _replaced(one, sizes, numbers_too) for key, one in value.items()}
    if numbers_too and type(value) is int:
        return sizes.get(value, value)
    return value


def _tensor(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Zeros of the new shape, whose dimensions lie in the order of the old ones."""
    if tensor.layout is not torch.strided:
        return tensor
    shape = [sizes.get(size, size) for size in tensor.shape]
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    made = torch.zeros([shape[dim] for dim in order], dtype=tensor.dtype)
    back = [order.index(dim) for dim in range(tensor.dim())]
    return made.permute(back).requires_grad_(tensor.requires_grad)
