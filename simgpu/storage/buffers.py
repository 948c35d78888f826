"""Stores the values of all tensors in host memory, for a simulated GPU with values=True.

Each storage of the simulated GPU has a host storage of the same number of bytes. A view of one corresponds to a view of
the other, so a write through one view is visible in all of them, as on a GPU.
"""

from __future__ import annotations

import torch

from simgpu.storage.host_memory import HostMemory

CPU = torch.device("cpu")


class Buffer:
    """The bytes of one storage, on the host."""

    __slots__ = ("storage",)

    def __init__(self, storage: torch.UntypedStorage):
        self.storage = storage

    def under(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the CPU tensor with the same layout in this buffer as `tensor` has in its storage. Writing to it
        writes here.
        """
        if tensor._is_zerotensor():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=CPU)
        found = torch.empty(0, dtype=tensor.dtype, device=CPU)
        found.set_(self.storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # pyright: ignore[reportArgumentType]
        if tensor.is_conj():
            found = found.conj()
        return torch._neg_view(found) if tensor.is_neg() else found

    def resize(self, nbytes: int) -> None:
        """Changes the size; the content is kept as far as it fits."""
        self.storage.resize_(nbytes)


def zeros(nbytes: int, memory: HostMemory) -> Buffer:
    """Returns a buffer of zeros, for results that an operator leaves undefined. Raises HostMemoryError if the host is
    full.
    """
    memory.take(nbytes)
    return Buffer(torch.zeros(nbytes, dtype=torch.uint8, device=CPU).untyped_storage())


def holding(tensor: torch.Tensor, like: torch.Tensor, nbytes: int, memory: HostMemory) -> Buffer:
    """Returns a buffer of `nbytes` that holds the CPU tensor `tensor` in the layout of the simulated tensor `like`.

    It uses the tensor's own storage if nothing else does, and otherwise copies it.
    """
    if _fills(tensor, like, nbytes):
        return Buffer(tensor.untyped_storage())
    made = zeros(nbytes, memory)
    made.under(like).copy_(tensor)
    return made


def _fills(tensor: torch.Tensor, like: torch.Tensor, nbytes: int) -> bool:
    """Returns whether a new tensor's storage can be the buffer of one with the layout of `like`."""
    if tensor.dtype != like.dtype or tensor.shape != like.shape or tensor.stride() != like.stride():
        return False
    if like.is_conj() or like.is_neg() or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return False
    storage = tensor.untyped_storage()
    alone = torch._C._storage_Use_Count(storage._cdata) == 2  # pyright: ignore[reportAttributeAccessIssue]
    return alone and storage.nbytes() == nbytes and tensor.storage_offset() == like.storage_offset()
