"""The physical device below the caching allocator."""

import pytest

from simgpu.memory.physical import PAGE, Device, MiB


def test_memory_is_counted_in_pages():
    device = Device(100 * MiB, 10 * MiB)
    assert device.mem_get_info() == (90 * MiB, 100 * MiB)
    address = device.malloc(3 * MiB)
    assert device.mem_get_info() == (86 * MiB, 100 * MiB)
    assert device.process_memory == 14 * MiB
    device.free(address)
    assert device.process_memory == 10 * MiB


def test_the_lowest_gap_that_fits_is_taken():
    device = Device(100 * MiB)
    first, second, third = (device.malloc(size * MiB) for size in (4, 8, 4))
    assert (second - first, third - second) == (4 * MiB, 8 * MiB)
    device.free(first)
    device.free(second)
    assert device.malloc(14 * MiB) == third + 4 * MiB
    assert device.malloc(6 * MiB) == first
    assert device.malloc(6 * MiB) == first + 6 * MiB


def test_a_full_device():
    device = Device(10 * MiB, 3 * MiB)
    assert device.malloc(8 * MiB) is None
    assert device.malloc(6 * MiB) is not None
    assert not device.map(2 * MiB)
    assert device.map(1 * MiB)
    assert device.free_memory == 0


def test_memory_outside_pytorch():
    device = Device(100 * MiB, 10 * MiB, non_pytorch=5 * MiB, other_processes={1: 20 * MiB})
    assert (device.free_memory, device.process_memory) == (65 * MiB, 15 * MiB)
    device.non_pytorch = 25 * MiB
    assert device.free_memory == 45 * MiB
    device.other_processes[2] = 90 * MiB
    assert device.free_memory == 0


def test_ranges_of_addresses_take_no_memory():
    device = Device(100 * MiB)
    first, second = device.reserve_range(3 * MiB), device.reserve_range(PAGE)
    assert second - first == 4 * MiB
    assert device.allocated == 0
    assert device.map(4 * MiB)
    device.unmap(4 * MiB)
    assert device.allocated == 0


def test_what_is_refused():
    with pytest.raises(ValueError, match="no segment of this device starts at 0x5"):
        Device(MiB).free(5)
    for sizes in ((0,), (MiB, 2 * MiB), (MiB, -1)):
        with pytest.raises(ValueError, match="room for its context"):
            Device(*sizes)
