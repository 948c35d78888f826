"""Defines the errors of a failed allocation, and of freeing a part of a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpu.allocator.physical import Device

if TYPE_CHECKING:  # the recorder imports this module on machines without sortedcontainers
    from simgpu.allocator.blocks import Block

# Defines the error of a failed allocation, with PyTorch's text.
# Source of the wording: `malloc` in `c10/cuda/CUDACachingAllocator.cpp`; compared with torch 2.13.0.

HINT = (
    " If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


class OutOfMemory(Exception):
    """Raised when a request cannot be served. `str()` is the message of `torch.cuda.OutOfMemoryError`.

    Attributes, in bytes: `size` (the rounded request), `alloc_size` (the size requested from the device, which the
    message shows), `device_free`, `device_total`, `allowed` (None without a memory fraction), `allocated` and
    `reserved` by PyTorch. `rejected` is True if `throw_on_cudamalloc_oom` refused it beforehand.
    """

    def __init__(self, message: str, **fields) -> None:
        super().__init__(message)
        self.message = message
        self.size: int = fields.get("size", 0)
        self.alloc_size: int = fields.get("alloc_size", 0)
        self.device_free: int = fields.get("device_free", 0)
        self.device_total: int = fields.get("device_total", 0)
        self.allowed: int | None = fields.get("allowed")
        self.allocated: int = fields.get("allocated", 0)
        self.reserved: int = fields.get("reserved", 0)
        self.rejected: bool = fields.get("rejected", False)


def format_size(nbytes: int) -> str:
    """Formats bytes as PyTorch's error messages do, `20.00 MiB`; exactly 1 MiB is still `1024.00 KiB`."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for unit, scale in (("KiB", 2**10), ("MiB", 2**20)):
        if nbytes <= scale * 1024:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes / 2**30:.2f} GiB"


def out_of_memory(
    device: Device,
    index: int,
    *,
    size: int,
    alloc_size: int,
    allowed: int | None,
    allocated: int,
    reserved: int,
    in_private_pools: int = 0,
) -> OutOfMemory:
    """Returns the error for a failed request of `size` bytes, in a segment of `alloc_size`, on GPU number `index`.

    `in_private_pools` is the bytes of free blocks of private pools, which PyTorch counts as allocated here.
    """
    free, total = device.mem_get_info()
    parts = [
        f"CUDA out of memory. Tried to allocate {format_size(alloc_size)}. GPU {index} has a total capacity "
        f"of {format_size(total)} of which {format_size(free)} is free. "
    ]
    for pid, used in device.other_processes.items():
        parts.append(f"Process {pid} has {format_size(used)} memory in use. ")
    parts.append(f"Including non-PyTorch memory, this process has {format_size(device.process_memory)} memory in use. ")
    if allowed is not None:
        parts.append(f"{format_size(allowed)} allowed; ")
    taken = allocated + in_private_pools
    parts.append(f"Of the allocated memory {format_size(taken)} is allocated by PyTorch, ")
    if in_private_pools:
        parts.append(f"with {format_size(in_private_pools)} allocated in private pools (e.g., CUDA Graphs), ")
    parts.append(f"and {format_size(reserved - taken)} is reserved by PyTorch but unallocated.")
    parts.append(HINT)
    return OutOfMemory(
        "".join(parts),
        size=size,
        alloc_size=alloc_size,
        device_free=free,
        device_total=total,
        allowed=allowed,
        allocated=allocated,
        reserved=reserved,
    )


def rejected(nbytes: int, alloc_size: int) -> OutOfMemory:
    """Returns the error for a request of `nbytes` bytes whose segment `throw_on_cudamalloc_oom` refuses."""
    return OutOfMemory(
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(nbytes)}",
        size=nbytes,
        alloc_size=alloc_size,
        rejected=True,
    )


def too_large(nbytes: int) -> OutOfMemory:
    """Returns the error for a tensor of 2**60 bytes or more."""
    return OutOfMemory("CUDA out of memory. Tried to allocate more than 1EB memory.", size=nbytes)


# Defines the error of freeing a part of a segment, which PyTorch may do after max_split_size was lowered.


class InvalidFree(Exception):
    """Raised when `cudaFree` is called for a block that is only a part of a segment.

    If a request fails, `release_available_cached_blocks` (`c10/cuda/CUDACachingAllocator.cpp`) frees blocks of at least
    `max_split_size` without checking whether they are parts. None is, unless the setting was lowered while the program
    ran. PyTorch 2.13.0 was observed to make this call (on the oracle, whose `cudaFree` accepts every address).

    `inside` says whether the block begins inside its segment. CUDA's documentation of `cudaFree` requires an address
    that `cudaMalloc` has returned, and names `cudaErrorInvalidValue` for any other. At the start of a segment CUDA
    would free all of it, with blocks in use.
    """

    def __init__(self, block: Block) -> None:
        self.inside = block.prev is not None
        super().__init__(f"cudaFree of {block!r}, a part of a segment")
