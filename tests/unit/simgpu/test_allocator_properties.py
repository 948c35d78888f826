"""What holds for the caching allocator after any sequence of requests, in any setting."""

import copy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.physical import MIB, Device
from simgpu.allocator.settings import AllocatorSettings

TOTAL = 300 * MIB
CONFS = (
    "",
    "max_split_size_mb:32",
    "roundup_power2_divisions:[1:8,16:4,>:2]",
    "large_segment_size_mb:40",
    "expandable_segments:True",
    "expandable_segments:True,garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.5,max_split_size_mb:64",
)

sizes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 2 * MIB),
    st.integers(1, 60 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB, 20 * MIB, 400 * MIB]),
)
streams = st.sampled_from([0, 0, 0, 3, 35])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), sizes, streams),
        st.tuples(st.just("free"), st.integers(0, 10**6)),
        st.tuples(st.just("record"), st.integers(0, 10**6), streams),
        st.tuples(st.just("empty")),
        st.tuples(st.just("synchronize")),
    ),
    max_size=60,
)


def run(conf, fraction, sequence):
    """An allocator after a sequence, with the blocks that are still handed out."""
    allocator = CachingAllocator(Device(TOTAL), AllocatorSettings.parse(conf))
    allocator.set_memory_fraction(fraction)
    live = []
    for kind, *arguments in sequence:
        if kind == "malloc":
            try:
                block = allocator.malloc(*arguments)
            except OutOfMemory:
                continue
            if block is not None:
                live.append(block)
        elif kind == "free" and live:
            allocator.free(live.pop(arguments[0] % len(live)))
        elif kind == "record" and live:
            allocator.record_stream(live[arguments[0] % len(live)], arguments[1])
        elif kind == "empty":
            allocator.empty_cache()
        elif kind == "synchronize":
            allocator.synchronize()
    return allocator, live


def any_sequence(test):
    return settings(max_examples=250, deadline=None)(
        given(st.sampled_from(CONFS), st.sampled_from([1.0, 0.6]), steps)(test)
    )


@any_sequence
def test_no_two_live_blocks_overlap(conf, fraction, sequence):
    _, live = run(conf, fraction, sequence)
    spans = sorted((block.address, block.address + block.size) for block in live)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(block.size >= block.requested_size and block.size % 512 == 0 for block in live)


@any_sequence
def test_blocks_fill_their_segments_and_free_neighbours_are_merged(conf, fraction, sequence):
    allocator, _ = run(conf, fraction, sequence)
    for segment in allocator.snapshot_segments():
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in pairwise(states)


@any_sequence
def test_segments_do_not_overlap_and_are_all_the_device_has_given(conf, fraction, sequence):
    allocator, _ = run(conf, fraction, sequence)
    segments = allocator.snapshot_segments()
    spans = [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]
    assert spans == sorted(spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert sum(segment["total_size"] for segment in segments) == allocator.reserved == allocator.device.allocated
    assert allocator.reserved <= (TOTAL if fraction == 1.0 else round(fraction * TOTAL))


@any_sequence
def test_the_statistics_are_the_sums_over_the_blocks(conf, fraction, sequence):
    allocator, live = run(conf, fraction, sequence)
    stats = allocator.stats()
    segments = allocator.snapshot_segments()
    for pool, kinds in (("all", ("small", "large")), ("small_pool", ("small",)), ("large_pool", ("large",))):
        of_pool = [segment for segment in segments if segment["segment_type"] in kinds]
        blocks = [block for segment in of_pool for block in segment["blocks"]]
        allocated = [block for block in blocks if block["state"] == "active_allocated"]
        active = [block for block in blocks if block["state"] != "inactive"]
        now = {key: value[pool]["current"] for key, value in stats.items() if isinstance(value, dict) and pool in value}
        assert now["allocation"] == len(allocated)
        assert now["allocated_bytes"] == sum(block["size"] for block in allocated)
        assert now["active"] == len(active)
        assert now["active_bytes"] == sum(block["size"] for block in active)
        assert now["requested_bytes"] == sum(block["requested_size"] for block in active)
        assert now["reserved_bytes"] == sum(segment["total_size"] for segment in of_pool)
        fixed = [segment for segment in of_pool if not segment["is_expandable"]]
        assert now["segment"] == len(fixed)
        split = [
            block["size"]
            for segment in fixed
            if len(segment["blocks"]) > 1
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
        assert (now["inactive_split"], now["inactive_split_bytes"]) == (len(split), sum(split))
        assert now["reserved_bytes"] >= now["active_bytes"] >= now["allocated_bytes"]
        for key, value in stats.items():
            if isinstance(value, dict) and pool in value:
                counter = value[pool]
                assert counter["peak"] >= counter["current"] >= 0
                assert counter["allocated"] - counter["freed"] == counter["current"], key
    assert allocator.allocated == sum(block.size for block in live)


@any_sequence
def test_the_same_sequence_gives_the_same_state(conf, fraction, sequence):
    first, second = run(conf, fraction, sequence)[0], run(conf, fraction, copy.deepcopy(sequence))[0]
    assert first.stats() == second.stats()
    assert first.snapshot() == second.snapshot()


@any_sequence
def test_everything_can_be_given_back(conf, fraction, sequence):
    allocator, live = run(conf, fraction, sequence)
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved, allocator.device.allocated) == (0, 0, 0)
    assert allocator.snapshot_segments() == []


@pytest.mark.parametrize("conf", CONFS)
def test_the_settings_reach_the_allocator(conf):
    allocator, _ = run(conf, 1.0, [])
    assert allocator.snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == conf
