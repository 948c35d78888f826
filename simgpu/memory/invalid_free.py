"""The error of giving back a part of a segment, which PyTorch asks of CUDA after max_split_size was lowered."""

from __future__ import annotations

from simgpu.memory.blocks import Block


class InvalidFree(Exception):
    """`cudaFree` was asked for a block that is a part of a segment.

    Where a request fails, `release_available_cached_blocks` (`c10/cuda/CUDACachingAllocator.cpp`) gives free blocks of
    at least `max_split_size` back without asking whether they are parts: none is, unless the setting was lowered while
    the program ran. PyTorch 2.13.0 was seen to ask (on the oracle, whose `cudaFree` accepts every address).

    `inside`: the block begins inside its segment. CUDA's documentation of `cudaFree` wants an address that `cudaMalloc`
    has returned, and names `cudaErrorInvalidValue` for another. At the start of a segment CUDA would free all of it,
    with blocks in use.
    """

    def __init__(self, block: Block) -> None:
        self.inside = block.prev is not None
        super().__init__(f"cudaFree of {block!r}, a part of a segment")
