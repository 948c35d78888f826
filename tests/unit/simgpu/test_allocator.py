"""The rules of the caching allocator, one by one."""

import pytest

from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.out_of_memory import format_size
from simgpu.allocator.physical import MIB, Device
from simgpu.allocator.rounding import round_size, segment_size
from simgpu.allocator.settings import AllocatorSettings

KIB = 2**10


def make(conf="", total=1024 * MIB, **options):
    return CachingAllocator(Device(total), AllocatorSettings.parse(conf), **options)


@pytest.mark.parametrize(
    ("requested", "block"),
    [(1, 512), (512, 512), (513, 1024), (4000, 4096), (MIB, MIB), (MIB + 1, MIB + 512), (7 * MIB - 1, 7 * MIB)],
)
def test_requests_round_up_to_512_bytes(requested, block):
    assert round_size(requested) == block
    assert make().malloc(requested).size == block


@pytest.mark.parametrize(
    ("requested", "divisions", "block"),
    [(1200, 2, 1536), (5 * MIB, 4, 5 * MIB), (5 * MIB + 1, 4, 6 * MIB), (8 * MIB, 4, 8 * MIB), (700, 8, 1024)],
)
def test_roundup_power2_divisions(requested, divisions, block):
    assert round_size(requested, (divisions,) * 16) == block


@pytest.mark.parametrize(
    ("requested", "segment"),
    [(1, 2), (1 * MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 1, 12), (33 * MIB, 34)],
)
def test_size_of_a_new_segment(requested, segment):
    assert segment_size(round_size(requested), 20 * MIB) == segment * MIB
    allocator = make()
    allocator.malloc(requested)
    assert allocator.reserved == segment * MIB


def test_a_remainder_of_at_most_1_mib_stays_with_a_large_block():
    allocator = make()
    assert allocator.malloc(19 * MIB).size == 20 * MIB
    assert allocator.allocated == 20 * MIB
    shorter = allocator.malloc(19 * MIB - 512)
    assert shorter.size == 19 * MIB - 512
    assert shorter.next.size == MIB + 512


def test_small_blocks_split_down_to_512_bytes():
    allocator = make()
    blocks = [allocator.malloc(1) for _ in range(4096)]
    assert allocator.reserved == 2 * MIB
    assert [block.address - blocks[0].address for block in blocks[:3]] == [0, 512, 1024]


def test_best_fit_takes_the_smallest_block_that_is_large_enough():
    allocator = make()
    blocks = [allocator.malloc(size) for size in (30 * MIB, 12 * MIB, 20 * MIB, 16 * MIB)]
    addresses = {block.size: block.address for block in blocks}
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(15 * MIB).address == addresses[16 * MIB]
    assert allocator.malloc(11 * MIB).address == addresses[12 * MIB]
    assert allocator.reserved == 78 * MIB


def test_a_stream_keeps_its_blocks():
    allocator = make()
    block = allocator.malloc(12 * MIB, stream=3)
    allocator.free(block)
    assert allocator.malloc(12 * MIB).stream == 0
    assert allocator.malloc(12 * MIB, stream=3).address == block.address
    assert allocator.reserved == 24 * MIB


def test_small_and_large_requests_never_share_a_segment():
    allocator = make()
    allocator.free(allocator.malloc(5 * MIB))
    allocator.malloc(1 * MIB)
    assert allocator.reserved == 22 * MIB


def tie_break(torch_version):
    """Which of two equally large free blocks is taken: "old" was cut from the older segment, "low" lies lower."""

    class Downwards(Device):
        """A device whose second segment lies below its first."""

        def malloc(self, nbytes):
            return super().malloc(nbytes) - len(self._segments) * 1024 * MIB

    allocator = CachingAllocator(Downwards(1024 * MIB), torch_version=torch_version)
    old, low = allocator.malloc(12 * MIB), allocator.malloc(12 * MIB)
    assert low.address < old.address
    names = {old.address: "old", low.address: "low"}
    allocator.free(low)
    allocator.free(old)
    return names[allocator.malloc(12 * MIB).address]


def test_ties_depend_on_the_version_of_torch():
    assert [tie_break(version) for version in ((2, 6), (2, 11), (2, 12), (2, 13))] == ["low", "low", "old", "old"]


def test_neighbours_merge_when_they_are_freed():
    allocator = make()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.free(block)
    (segment,) = allocator.snapshot_segments()
    assert [(block["size"], block["state"]) for block in segment["blocks"]] == [(20 * MIB, "inactive")]


def test_empty_cache_gives_back_only_whole_free_segments():
    allocator = make()
    kept, dropped = allocator.malloc(5 * MIB), allocator.malloc(100 * MIB)
    allocator.free(dropped)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (5 * MIB, 20 * MIB)
    allocator.free(kept)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.device.allocated) == (0, 0, 0)


def test_peaks_and_their_reset():
    allocator = make()
    allocator.free(allocator.malloc(30 * MIB))
    small = allocator.malloc(1 * MIB)
    assert (allocator.max_allocated, allocator.max_reserved) == (30 * MIB, 32 * MIB)
    allocator.reset_peak_stats()
    assert (allocator.max_allocated, allocator.max_reserved) == (1 * MIB, 32 * MIB)
    assert allocator.stats()["allocation"]["all"] == {"current": 1, "peak": 1, "allocated": 2, "freed": 1}
    allocator.reset_accumulated_stats()
    assert allocator.stats()["allocation"]["all"] == {"current": 1, "peak": 1, "allocated": 0, "freed": 0}
    assert allocator.stats()["num_device_alloc"] == 0
    allocator.free(small)


def test_keys_of_older_versions():
    assert "num_oom_rejections" not in make(torch_version=(2, 11)).stats()
    assert "num_oom_rejections" in make(torch_version=(2, 12)).stats()
    for version, has_pool in (((2, 11), False), ((2, 12), True)):
        allocator = make(torch_version=version)
        allocator.history.configure("all", None, 10, False, ())
        allocator.malloc(512)
        assert ["pool_id" in event for event in allocator.snapshot()["device_traces"][0]] == [has_pool, has_pool]


# What cannot be done.


def test_zero_bytes_take_no_block():
    allocator = make()
    assert allocator.malloc(0) is None
    assert allocator.stats()["allocation"]["all"]["allocated"] == 0


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        make().malloc(-1)


def test_freeing_twice_is_refused_and_changes_nothing():
    allocator = make()
    block = allocator.malloc(5)
    allocator.free(block)
    before = allocator.stats()
    with pytest.raises(ValueError, match="freed twice"):
        allocator.free(block)
    with pytest.raises(ValueError, match="not allocated"):
        allocator.record_stream(block, 3)
    assert allocator.stats() == before


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_fractions_outside_0_to_1_are_refused(fraction):
    with pytest.raises(ValueError, match="Allowed range: 0~1"):
        make().set_memory_fraction(fraction)


# Out of memory.

TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 2 has a total capacity of 64.00 MiB of which 12.00 MiB "
    "is free. Including non-PyTorch memory, this process has 52.00 MiB memory in use. Of the allocated memory "
    "30.00 MiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
    "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


def test_the_message_names_the_segment_and_counts_after_the_caches_were_released():
    allocator = CachingAllocator(Device(64 * MIB, 20 * MIB), index=2)
    large = allocator.malloc(29 * MIB + 512)
    small = [allocator.malloc(1 * MIB - 512 * i) for i in (1, 2)]
    allocator.free(small[0])
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(3 * MIB)
    error = caught.value
    assert str(error) == error.message
    assert error.message == TEXT.replace("30.00 MiB is", f"{(large.size + small[1].size) / MIB:.2f} MiB is").replace(
        "2.00 MiB is reserved", f"{(32 * MIB - large.size - small[1].size) / MIB:.2f} MiB is reserved"
    )
    assert (error.size, error.alloc_size) == (3 * MIB, 20 * MIB)
    assert (error.device_free, error.device_total) == (12 * MIB, 64 * MIB)
    assert (error.allocated, error.reserved) == (large.size + small[1].size, 32 * MIB)
    assert error.allowed is None
    assert not error.rejected


def test_work_goes_on_after_an_error():
    allocator = make(total=64 * MIB)
    blocks = [allocator.malloc(20 * MIB) for _ in range(3)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(20 * MIB)
    stats = allocator.stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
    assert allocator.allocated == 60 * MIB
    allocator.free(blocks.pop())
    assert allocator.malloc(20 * MIB).size == 20 * MIB


def test_a_full_cache_is_given_back_before_giving_up():
    allocator = make(total=64 * MIB)
    allocator.free(allocator.malloc(50 * MIB))
    allocator.malloc(60 * MIB)
    stats = allocator.stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"], stats["num_device_free"]) == (0, 1, 1)


def test_a_memory_fraction_limits_and_is_named():
    allocator = make()
    allocator.set_memory_fraction(0.25)
    allocator.malloc(200 * MIB)
    with pytest.raises(OutOfMemory, match=r"in use\. 256\.00 MiB allowed; Of the allocated memory 200\.00 MiB"):
        allocator.malloc(100 * MIB)
    allocator.set_memory_fraction(1.0)
    allocator.malloc(100 * MIB)


def test_other_processes_are_named():
    device = Device(64 * MIB, 4 * MIB, non_pytorch=2 * MIB, other_processes={4711: 50 * MIB})
    with pytest.raises(OutOfMemory) as caught:
        CachingAllocator(device).malloc(20 * MIB)
    assert "Process 4711 has 50.00 MiB memory in use. " in str(caught.value)
    assert "this process has 6.00 MiB memory in use. " in str(caught.value)
    assert "of which 8.00 MiB is free" in str(caught.value)


def test_an_exabyte():
    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate more than 1EB memory\.$"):
        make().malloc(2**60)


def test_rejected_beforehand():
    allocator = make("throw_on_cudamalloc_oom:True")
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(1025 * MIB - 100)
    assert str(caught.value) == (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 1.00 GiB"
    )
    assert caught.value.rejected
    stats = allocator.stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"], stats["num_alloc_retries"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (2**30, "1024.00 MiB"),
        (2**30 + 2**24, "1.02 GiB"),
    ],
)
def test_sizes_in_messages(nbytes, text):
    assert format_size(nbytes) == text


# Several streams.


def test_a_block_used_on_another_stream_stays_active_until_that_stream_is_done():
    allocator = make()
    block = allocator.malloc(12 * MIB)
    allocator.record_stream(block, 3)
    allocator.free(block)
    stats = allocator.stats()
    assert (allocator.allocated, stats["active_bytes"]["all"]["current"]) == (0, 12 * MIB)
    (segment,) = allocator.snapshot_segments()
    assert segment["blocks"][0]["state"] == "active_pending_free"
    assert allocator.malloc(12 * MIB).address != block.address
    allocator.synchronize()
    assert allocator.stats()["active_bytes"]["all"]["current"] == 24 * MIB  # seen only at the next request
    assert allocator.malloc(12 * MIB).address == block.address


def test_the_streams_can_report_for_themselves():
    done = set()
    allocator = make(record_event=lambda stream: lambda: stream in done)
    block = allocator.malloc(12 * MIB)
    allocator.record_stream(block, 0)  # its own stream: nothing to wait for
    allocator.record_stream(block, 3)
    allocator.record_stream(block, 35)
    allocator.free(block)
    done.add(3)
    assert allocator.malloc(12 * MIB).address != block.address
    done.add(35)
    assert allocator.malloc(12 * MIB).address == block.address


def test_empty_cache_waits_for_all_streams():
    allocator = make()
    block = allocator.malloc(12 * MIB)
    allocator.record_stream(block, 3)
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert allocator.stats()["num_sync_all_streams"] == 1


def test_waiting_for_one_stream():
    allocator = make()
    blocks = [allocator.malloc(12 * MIB) for _ in range(2)]
    for block, stream in zip(blocks, (3, 35), strict=True):
        allocator.record_stream(block, stream)
        allocator.free(block)
    allocator.synchronize(35)
    assert allocator.malloc(12 * MIB).address == blocks[1].address


# Expandable segments.


def test_an_expandable_segment_grows_in_place():
    allocator = make("expandable_segments:True")
    blocks = [allocator.malloc(30 * MIB) for _ in range(3)]
    assert allocator.reserved == 100 * MIB  # granules of 20 MiB: 2 for the first block, 1 more, 2 more
    assert [block.address - blocks[0].address for block in blocks] == [0, 30 * MIB, 60 * MIB]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(95 * MIB)
    assert allocator.reserved == 100 * MIB
    assert len(allocator.snapshot_segments()) == 1


def test_expandable_segments_give_back_whole_granules():
    allocator = make("expandable_segments:True")
    first, second = allocator.malloc(30 * MIB), allocator.malloc(70 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    allocator.free(first)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.device.allocated) == (0, 0)
    assert allocator.snapshot_segments() == []


def test_memory_behind_a_range_ends_where_the_device_is_full():
    device = Device(64 * MIB, 4 * MIB)
    assert device.map(40 * MIB) is True
    assert device.map(40 * MIB) is False
    assert device.allocated == 40 * MIB


def in_private_pool(allocator, nbytes, pool_id=(0, 1)):
    """A block of a private pool of a user's, as `with torch.cuda.use_mem_pool(pool)` takes one."""
    allocator.pools.make(pool_id)
    allocator.pools.begin(pool_id, lambda stream: True)
    block = allocator.malloc(nbytes)
    allocator.pools.end(pool_id)
    allocator.pools.release(pool_id)  # what `begin` took
    return block


def test_a_private_pool_that_ends_gives_back_its_own_segments_only():
    """release_cached_blocks with a mempool_id."""
    allocator = make()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.free(in_private_pool(allocator, 40 * MIB))
    assert allocator.reserved == 70 * MIB
    allocator.drop_pool((0, 1))
    assert allocator.reserved == 30 * MIB
    with pytest.raises(RuntimeError, match="there is no private pool"):
        allocator.pools.users((0, 1))


def test_a_private_pool_lives_as_long_as_its_memory():
    allocator = make()
    block = in_private_pool(allocator, 40 * MIB)
    allocator.drop_pool((0, 1))
    assert allocator.pools.users((0, 1)) == 0
    with pytest.raises(RuntimeError, match="was released by all of its users"):
        allocator.pools.take((0, 1))
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 0
    allocator.pools.take((0, 1))  # a new one
    assert allocator.pools.users((0, 1)) == 1


def test_nothing_is_given_back_while_a_graph_is_captured():
    """release_cached_blocks: `if (mempool_id.first == 0 && mempool_id.second == 0 && captures_underway.empty())`."""
    allocator = make()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.pools.begin((1, 0), lambda stream: True, capture=True)
    allocator.empty_cache()
    assert allocator.reserved == 30 * MIB
    allocator.pools.end((1, 0))
    allocator.empty_cache()
    assert allocator.reserved == 0


def test_a_request_of_max_split_size_takes_a_block_of_it():
    """get_free_block: only a request below max_split_size may not have such a block."""
    allocator = make("max_split_size_mb:32")
    allocator.free(allocator.malloc(32 * MIB))
    assert allocator.malloc(32 * MIB).size == allocator.reserved == 32 * MIB
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 62 * MIB


def test_segments_and_blocks_of_max_split_size_are_counted():
    allocator = make("max_split_size_mb:32")
    kept = [allocator.malloc(size * MIB) for size in (30, 32, 34)]

    def counted():
        stats = allocator.stats()
        return [stats[f"oversize_{name}"]["current"] for name in ("segments", "allocations")]

    assert counted() == [2, 2]
    for block in kept:
        allocator.free(block)
    assert counted() == [2, 0]
    allocator.empty_cache()
    assert counted() == [0, 0]


def test_blocks_of_max_split_size_are_given_back_before_smaller_ones():
    """release_available_cached_blocks: blocks of max_split_size and more, until there is enough; a cache of smaller
    ones stays, and the request counts as no retry."""
    allocator = make("max_split_size_mb:32", total=90 * MIB)
    for block in [allocator.malloc(size * MIB) for size in (32, 32, 20)]:
        allocator.free(block)
    allocator.malloc(40 * MIB)
    assert allocator.reserved == 60 * MIB
    assert allocator.stats()["num_alloc_retries"] == 0
