"""Properties shared by all GPUs of a compute capability: threads and shared memory of a multiprocessor.

Source: CUDA C++ Programming Guide, technical specifications per compute capability.
"""

from typing import NamedTuple

KIB = 2**10


class Capability(NamedTuple):
    """Holds the properties of a compute capability.

    max_threads: threads per multiprocessor. shared_memory: bytes per multiprocessor. shared_memory_per_block: the most
    bytes that one thread block may request (cudaDevAttrMaxSharedMemoryPerBlockOptin).
    """

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
