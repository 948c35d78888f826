"""The host's memory for the values of simulated tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from simgpu.errors import HostMemoryError

# Checks how much host memory is left for values before it is allocated, so that the machine never swaps.

KEPT_FREE = 256 * 2**20  # bytes left for everything else: temporaries of operators, the libraries, the notebook
LOOK_AGAIN = 8  # the free memory is read again once this fraction of it was allocated
_CGROUPS = (  # (limit, used) of cgroup version 2 and version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_CACHE = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _of_table(path: str, name: str) -> int | None:
    """Returns a row of a table of names and numbers, "MemAvailable:   123 kB" or "inactive_file 123", in bytes."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                words = line.split()
                return int(words[1]) * (1024 if words[-1] == "kB" else 1)
    except OSError:
        pass
    return None


def _of_group() -> int | None:
    """Returns what the control group's limit (a container's) leaves; cached files can be dropped, so they count as
    free.
    """
    for (limit, used), cache in zip(_CGROUPS, _CACHE, strict=True):
        most, taken = _number(limit), _number(used)
        if most is not None and taken is not None:
            return most - taken + (_of_table(cache, "inactive_file") or 0)
    return None


def available() -> int | None:
    """Returns the bytes that this process can allocate without swapping, or None if the system does not report it."""
    found = [one for one in (_of_table("/proc/meminfo", "MemAvailable:"), _of_group()) if one is not None]
    return max(0, min(found)) if found else _of_system()


def _of_system() -> int | None:
    """Returns the free memory by POSIX's sysconf, for systems without /proc."""
    import os

    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


class HostMemory:
    """Raises an error before the host's memory is full. `ask` returns the free bytes, or None if unknown."""

    def __init__(self, ask: Callable[[], int | None] = available):
        self._ask = ask
        self._free: int | None = 0
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Raises HostMemoryError if allocating `nbytes` would leave less than KEPT_FREE; call it before allocating."""
        self._taken += nbytes
        if self._free is None or self._taken * LOOK_AGAIN <= self._free - KEPT_FREE:
            return
        self._taken = nbytes
        self._free = self._ask()
        if self._free is not None and nbytes > self._free - KEPT_FREE:
            raise HostMemoryError(
                f"values=True keeps the values of all tensors in the host's memory: {nbytes} B "
                f"({nbytes / 2**30:.2f} GiB) are wanted, and {self._free} B ({self._free / 2**30:.2f} GiB) are free, "
                f"of which {KEPT_FREE >> 20} MiB are left alone. Simulate without values=True, or a smaller model."
            )


# Stores the values of all tensors in host memory, for a simulated GPU with values=True.
# Each storage of the simulated GPU has a host storage of the same number of bytes. A view of one corresponds to a
# view of the other, so a write through one view is visible in all of them, as on a GPU.

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
