"""What every GPU of a compute capability has: threads and shared memory of its multiprocessors.

Source: CUDA C++ Programming Guide, technical specifications per compute capability.
"""

from typing import NamedTuple

KIB = 2**10


class Capability(NamedTuple):
    """max_threads: of a multiprocessor. shared_memory: bytes of a multiprocessor. shared_memory_per_block: the most of
    them that one block of threads may ask for (cudaDevAttrMaxSharedMemoryPerBlockOptin)."""

    max_threads: int
    shared_memory: int
    shared_memory_per_block: int


CAPABILITIES: dict[tuple[int, int], Capability] = {
    (7, 0): Capability(2048, 96 * KIB, 96 * KIB),
    (7, 5): Capability(1024, 64 * KIB, 64 * KIB),
    (8, 0): Capability(2048, 164 * KIB, 163 * KIB),
    (8, 6): Capability(1536, 100 * KIB, 99 * KIB),
    (8, 9): Capability(1536, 100 * KIB, 99 * KIB),
    (9, 0): Capability(2048, 228 * KIB, 227 * KIB),
    (10, 0): Capability(2048, 228 * KIB, 227 * KIB),
    (12, 0): Capability(1536, 100 * KIB, 99 * KIB),
}
