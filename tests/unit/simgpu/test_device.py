"""The physical device below the caching allocator."""

import pytest

from simgpu.allocator.physical import MIB, PAGE, Device


def test_memory_is_counted_in_pages():
    device = Device(100 * MIB, 10 * MIB)
    assert device.mem_get_info() == (90 * MIB, 100 * MIB)
    address = device.malloc(3 * MIB)
    assert device.mem_get_info() == (86 * MIB, 100 * MIB)
    assert device.process_memory == 14 * MIB
    device.free(address)
    assert device.process_memory == 10 * MIB


def test_the_lowest_gap_that_fits_is_taken():
    device = Device(100 * MIB)
    first, second, third = (device.malloc(size * MIB) for size in (4, 8, 4))
    assert (second - first, third - second) == (4 * MIB, 8 * MIB)
    device.free(first)
    device.free(second)
    assert device.malloc(14 * MIB) == third + 4 * MIB
    assert device.malloc(6 * MIB) == first
    assert device.malloc(6 * MIB) == first + 6 * MIB


def test_a_full_device():
    device = Device(10 * MIB, 3 * MIB)
    assert device.malloc(8 * MIB) is None
    assert device.malloc(6 * MIB) is not None
    assert not device.map(2 * MIB)
    assert device.map(1 * MIB)
    assert device.free_memory == 0


def test_memory_outside_pytorch():
    device = Device(100 * MIB, 10 * MIB, non_pytorch=5 * MIB, other_processes={1: 20 * MIB})
    assert (device.free_memory, device.process_memory) == (65 * MIB, 15 * MIB)
    device.non_pytorch = 25 * MIB
    assert device.free_memory == 45 * MIB
    device.other_processes[2] = 90 * MIB
    assert device.free_memory == 0


def test_ranges_of_addresses_take_no_memory():
    device = Device(100 * MIB)
    first, second = device.reserve_range(3 * MIB), device.reserve_range(PAGE)
    assert second - first == 4 * MIB
    assert device.allocated == 0
    assert device.map(4 * MIB)
    device.unmap(4 * MIB)
    assert device.allocated == 0


def test_what_is_refused():
    with pytest.raises(ValueError, match="no segment of this device starts at 0x5"):
        Device(MIB).free(5)
    for sizes in ((0,), (MIB, 2 * MIB), (MIB, -1)):
        with pytest.raises(ValueError, match="room for its context"):
            Device(*sizes)
