"""Where the values of all tensors are kept, for a simulated GPU that was asked for them: memory of the host.

A storage of the simulated GPU has a storage of the host beside it, of the same bytes. A view of the one is a view of
the other, so what writes through a view is seen by all of them, as on a GPU.
"""

from __future__ import annotations

import torch

from simgpu.tensors.host_memory import HostMemory

CPU = torch.device("cpu")


class Buffer:
    """The bytes of one storage, on the host."""

    __slots__ = ("storage",)

    def __init__(self, storage: torch.UntypedStorage):
        self.storage = storage

    def under(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the CPU that lies here as `tensor` lies in its own storage. Writing to it writes here."""
        if tensor._is_zerotensor():
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=CPU)
        found = torch.empty(0, dtype=tensor.dtype, device=CPU)
        found.set_(self.storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # pyright: ignore[reportArgumentType]
        if tensor.is_conj():
            found = found.conj()
        return torch._neg_view(found) if tensor.is_neg() else found

    def resize(self, nbytes: int) -> None:
        """Makes it larger or smaller; what fits stays."""
        self.storage.resize_(nbytes)


def zeros(nbytes: int, memory: HostMemory) -> Buffer:
    """A buffer of zeros, for what an operator leaves undefined. HostMemoryError if the host has not so much left."""
    memory.take(nbytes)
    return Buffer(torch.zeros(nbytes, dtype=torch.uint8, device=CPU).untyped_storage())


def holding(tensor: torch.Tensor, like: torch.Tensor, nbytes: int, memory: HostMemory) -> Buffer:
    """A buffer of `nbytes` in which `tensor`, of the CPU, lies as the simulated tensor `like` does: its own storage
    where nothing else has that, else a copy."""
    if _fills(tensor, like, nbytes):
        return Buffer(tensor.untyped_storage())
    made = zeros(nbytes, memory)
    made.under(like).copy_(tensor)
    return made


def _fills(tensor: torch.Tensor, like: torch.Tensor, nbytes: int) -> bool:
    """Whether the storage of a tensor that was just made may be the buffer of one that lies as `like` does."""
    if tensor.dtype != like.dtype or tensor.shape != like.shape or tensor.stride() != like.stride():
        return False
    if like.is_conj() or like.is_neg() or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return False
    storage = tensor.untyped_storage()
    alone = torch._C._storage_Use_Count(storage._cdata) == 2  # pyright: ignore[reportAttributeAccessIssue]
    return alone and storage.nbytes() == nbytes and tensor.storage_offset() == like.storage_offset()
