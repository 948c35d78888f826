"""The allocated blocks of memory, and what the allocator has put into them beyond the request."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.formulas import block


@dataclass(frozen=True)
class Block:
    """An allocated block, in bytes: its size, and the size that was requested."""

    size: int
    requested: int

    @property
    def remainder(self) -> int:
        """What stays with the block because the allocator does not split it off: up to 1 MiB, for a large block."""
        return self.size - block(self.requested)


def allocated_blocks() -> dict[int, Block]:
    """The blocks that are allocated now, by address, from ``torch.cuda.memory_snapshot()``."""
    pieces = (piece for segment in torch.cuda.memory_snapshot() for piece in segment["blocks"])
    return {
        piece["address"]: Block(piece["size"], piece["requested_size"])
        for piece in pieces
        if piece["state"] == "active_allocated"
    }


def remainders() -> int:
    """Bytes of ``memory_allocated`` that are neither a request nor its rounding to 512 B: all remainders now.

    They depend on which free block a request happened to get, so no formula for a model has them.
    """
    return sum(one.remainder for one in allocated_blocks().values())
