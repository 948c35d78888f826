"""Gives recorded requests to the model of the caching allocator."""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.physical import Device


class RecordedDevice(Device):
    """A device whose `malloc` gives the recorded addresses, and notes the sizes that were asked for."""

    def __init__(self, addresses: Iterable[int]) -> None:
        super().__init__(80 * 2**30)
        self.addresses = iter(addresses)
        self.segments: list[tuple[int, int]] = []

    def malloc(self, nbytes: int) -> int:
        address = next(self.addresses)
        self.segments.append((address, nbytes))
        self.allocated += nbytes
        return address

    def free(self, address: int) -> None:
        self.allocated -= dict(self.segments)[address]


def replay(events: Iterable[tuple], torch_version: tuple[int, int]) -> tuple[list, list, list, list]:
    """Feed the `alloc` and `free_completed` events, rows (action, address, bytes, …), to an empty allocator.

    Returns what was recorded and what the model did: addresses of the blocks, then (address, bytes) of the
    segments, each as (recorded, model).
    """
    events = list(events)
    recorded_segments = [(event[1], event[2]) for event in events if event[0] == "segment_alloc"]
    device = RecordedDevice(address for address, _ in recorded_segments)
    allocator = CachingAllocator(device, torch_version=torch_version)
    live, recorded, model = {}, [], []
    for action, address, nbytes, *_ in events:
        if action == "alloc":
            block = live[address] = allocator.malloc(nbytes)
            recorded.append(address)
            model.append(block.address)
        elif action == "free_completed":
            allocator.free(live.pop(address))
    return recorded, model, recorded_segments, device.segments
