"""Snapshots of random programs, made with the allocator alone."""

from __future__ import annotations

import random

from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.physical import Device
from simgpu.allocator.settings import AllocatorSettings
from tests.course.playground.wandering import MIB

FRAMES = [{"filename": "torch/cuda/memory.py", "line": 233, "name": "empty_cache"}]


def recorded(seed: int, steps: int, settings: str = "", total: int = 600 * MIB, frames: bool = True, late: int = 0):
    """An allocator after random requests, frees and emptied caches, and its snapshot.

    `frames`: whether the history tells who called. `late`: the history begins after so many steps.
    """
    rng = random.Random(seed)
    calling: list = []
    allocator = CachingAllocator(
        Device(total), AllocatorSettings.parse(settings), frames=(lambda: list(calling)) if frames else None
    )
    living = []
    for step in range(steps):
        if step == late:
            allocator.record_history(max_entries=10**6)
        if living and rng.random() < 0.45:
            allocator.free(living.pop(rng.randrange(len(living))))
        elif rng.random() < 0.04:
            calling[:] = FRAMES
            allocator.empty_cache()
            calling.clear()
        else:
            try:
                living.append(allocator.malloc(int(rng.choice((600, MIB, 40 * MIB, 90 * MIB)) * rng.random()) + 1))
            except OutOfMemory:
                while len(living) > 3:  # as a program whose step fails: most of it goes
                    allocator.free(living.pop())
    return allocator, allocator.snapshot()
