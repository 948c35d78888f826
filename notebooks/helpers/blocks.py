"""Reads the allocated blocks of memory, and how far each exceeds its request."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.formulas import block


@dataclass(frozen=True)
class Block:
    """Holds an allocated block's size and its requested size, in bytes."""

    size: int
    requested: int

    @property
    def remainder(self) -> int:
        """Returns the bytes that the allocator did not split off, up to 1 MiB for a large block."""
        return self.size - block(self.requested)


def allocated_blocks() -> dict[int, Block]:
    """Returns the blocks that are allocated now, by address, from ``torch.cuda.memory_snapshot()``."""
    pieces = (piece for segment in torch.cuda.memory_snapshot() for piece in segment["blocks"])
    return {
        piece["address"]: Block(piece["size"], piece["requested_size"])
        for piece in pieces
        if piece["state"] == "active_allocated"
    }


def remainders() -> int:
    """Returns the bytes of ``memory_allocated`` that are neither requested nor due to rounding to 512 B.

    They depend on which free block a request happened to get, so no formula for a model can include them.
    """
    return sum(one.remainder for one in allocated_blocks().values())
