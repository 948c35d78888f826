"""Defines the error of freeing a part of a segment, which PyTorch may do after max_split_size was lowered."""

from __future__ import annotations

from simgpu.allocator.blocks import Block


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
