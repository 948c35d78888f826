"""PyTorch's caching allocator alone, without torch: how a request becomes a block of a segment."""

import sys

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.physical import Device

MiB = 2**20
allocator = CachingAllocator(Device(total_memory=16 * 2**30, context=0))

small = allocator.malloc(4)  # one float
large = allocator.malloc(3 * MiB)
print(f"4 B take {small.size} B of a segment of {small.segment.size // MiB} MiB")
print(f"3 MiB take {large.size // MiB} MiB of a segment of {large.segment.size // MiB} MiB")
allocator.free(large)
print(f"freed, {allocator.allocated} B are allocated, and {allocator.reserved // MiB} MiB stay reserved")
assert "torch" not in sys.modules
