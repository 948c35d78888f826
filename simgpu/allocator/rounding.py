"""Computes the size of a block and of a new segment for a request.

Constants: `c10/core/AllocatorConfig.h` of PyTorch (unchanged since 1.x). Rules: `round_size` and `get_allocation_size`
of `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from simgpu.allocator.physical import MIB

MIN_BLOCK_SIZE = 512
"""Every block is a multiple of this, in bytes."""

SMALL_SIZE = 1 * MIB
"""Requests up to this size come from the small pool, others from the large one."""

SMALL_BUFFER = 2 * MIB
"""Size of the small pool's segments."""

MIN_LARGE_ALLOC = 10 * MIB
"""Requests of the large pool below this size share segments of `large_segment_size` (20 MiB by default)."""

ROUND_LARGE = 2 * MIB
"""Segments for larger requests are multiples of this."""

ROUNDUP_INTERVALS = 16
"""`roundup_power2_divisions` has an entry for each power of two from 1 MiB to 32768 MiB."""


def round_size(nbytes: int, divisions: tuple[int, ...] | None = None) -> int:
    """Returns the block size in bytes for a request of `nbytes` > 0 bytes.

    `divisions` is the table of `roundup_power2_divisions` (16 entries), or None if the option is off. Then the size is
    the next multiple of 512.
    """
    if divisions is not None and nbytes >= MIN_BLOCK_SIZE:
        index = min(max(0, nbytes.bit_length() - 1 - 20), ROUNDUP_INTERVALS - 1)
        parts = divisions[index]
        if parts > 1 and nbytes > MIN_BLOCK_SIZE * parts:
            return _round_to_power2_division(nbytes, parts)
    return (nbytes + MIN_BLOCK_SIZE - 1) & -MIN_BLOCK_SIZE


def _round_to_power2_division(nbytes: int, parts: int) -> int:
    """Rounds up to the next of `parts` equal steps between two powers of two."""
    floor = 1 << (nbytes.bit_length() - 1)
    if nbytes == floor:
        return nbytes
    step = floor >> (parts.bit_length() - 1)
    return -(-nbytes // step) * step if step else 2 * floor


def segment_size(size: int, large_segment_size: int) -> int:
    """Returns the bytes to request from the device for a block of `size` bytes that no free block can serve."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return large_segment_size
    return -(-size // ROUND_LARGE) * ROUND_LARGE
