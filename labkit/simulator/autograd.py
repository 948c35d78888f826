"""What autograd does on CUDA and not under a dispatch mode.

Where two gradients meet, the engine adds the second into the first if nothing else holds the first
(torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). It refuses to under a dispatch mode and calls add.
This module tells when CUDA would have worked in place.
"""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ADD = torch.ops.aten.add.Tensor


class _Count(TorchDispatchMode):
    """Notes how many references the first operand of the engine's own `add` has when nothing else holds it."""

    counts = None

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is _ADD and torch._C._current_graph_task_id() != -1:
            self.counts = references(args[0])
        return operator(*args, **(kwargs or {}))


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """How many references PyTorch holds to a tensor and to its storage."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


@cache
def _unshared() -> tuple[int, int]:
    """What `references` gives for a tensor that only the engine holds, measured on this version of PyTorch."""
    with torch._C.DisableTorchFunction(), _Count() as counting:
        leaf = torch.ones(2, device="meta", requires_grad=True)
        doubled = leaf * 1
        (doubled * 2 + doubled * 3).backward(torch.ones(2, device="meta"))
    return counting.counts


def prepare() -> None:
    """Measures the reference counts once, outside any simulated GPU."""
    _unshared()


def accumulated_in_place(operator, args) -> bool:
    """Whether this call, made by autograd's engine, is a sum of gradients that CUDA computes in the first one."""
    if operator is not _ADD or len(args) != 2:
        return False
    first, second = args
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    dense = first.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(first)
    return dense and references(first) == _unshared()
