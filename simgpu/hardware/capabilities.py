"""What every GPU of a compute capability has: threads and shared memory of its multiprocessors.

Source: CUDA C++ Programming Guide, technical specifications per compute capability.
"""

from typing import NamedTuple

KiB = 2**10


class Capability(NamedTuple):
    """max_threads: of a multiprocessor. shared_memory: bytes of a multiprocessor. shared_memory_per_block: the most of
    them that one block of threads may ask for (cudaDevAttrMaxSharedMemoryPerBlockOptin)."""

    max_threads: int
    shared_memory: int
    shared_memory_per_block: int


CAPABILITIES: dict[tuple[int, int], Capability] = {
    (7, 0): Capability(2048, 96 * KiB, 96 * KiB),
    (7, 5): Capability(1024, 64 * KiB, 64 * KiB),
    (8, 0): Capability(2048, 164 * KiB, 163 * KiB),
    (8, 6): Capability(1536, 100 * KiB, 99 * KiB),
    (8, 9): Capability(1536, 100 * KiB, 99 * KiB),
    (9, 0): Capability(2048, 228 * KiB, 227 * KiB),
    (10, 0): Capability(2048, 228 * KiB, 227 * KiB),
    (12, 0): Capability(1536, 100 * KiB, 99 * KiB),
}
