"""Histories and memory snapshots: recorded, written, read safely, compared, and shown by PyTorch's viewer."""

import os
import pickle

import pytest
import torch

import labkit
from simgpu.allocator import snapshot as snapshots
from simgpu.allocator.caching import CachingAllocator, OutOfMemory
from simgpu.allocator.physical import MIB, Device
from simgpu.allocator.settings import AllocatorSettings
from simgpu.allocator.snapshot import SnapshotError


def frames():
    return [{"filename": "train.py", "line": 7, "name": "forward"}]


def recorded(conf="", **options):
    """An allocator that has recorded a few events, an error among them."""
    ticks = iter(range(1000, 10**6))
    allocator = CachingAllocator(
        Device(200 * MIB), AllocatorSettings.parse(conf), clock=lambda: next(ticks), frames=frames
    )
    allocator.record_history(**options)
    kept = allocator.malloc(3000)
    large = allocator.malloc(30 * MIB, stream=3)
    allocator.record_stream(large, 0)
    allocator.free(large)
    allocator.malloc(5 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(300 * MIB)
    allocator.empty_cache()
    return allocator, kept


def test_the_events_in_their_order():
    allocator, _ = recorded()
    (trace,) = allocator.snapshot()["device_traces"]
    assert [(entry["action"], entry["size"], entry["stream"]) for entry in trace] == [
        ("segment_alloc", 2 * MIB, 0),
        ("alloc", 3000, 0),
        ("segment_alloc", 30 * MIB, 3),
        ("alloc", 30 * MIB, 3),
        ("free_requested", 30 * MIB, 3),
        ("segment_alloc", 20 * MIB, 0),
        ("alloc", 5 * MIB, 0),
        ("free_completed", 30 * MIB, 3),
        ("segment_free", 30 * MIB, 3),
        ("oom", 300 * MIB, 0),
    ]
    assert [entry["time_us"] for entry in trace] == list(range(1000, 1010))
    assert list(trace[0]) == [
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "compile_context",
        "user_metadata",
        "pool_id",
        "frames",
    ]
    assert trace[-1]["device_free"] == (200 - 2 - 20) * MIB
    assert trace[1]["frames"] == frames()


def test_a_snapshot_is_itself_an_event_after_it_was_taken():
    allocator, kept = recorded()
    assert allocator.snapshot()["device_traces"][0][-1]["action"] == "oom"
    last = allocator.snapshot()["device_traces"][0][-1]
    assert (last["action"], last["size"]) == ("snapshot", kept.size + 5 * MIB)
    assert "frames" not in last


def test_frames_of_blocks_and_segments():
    allocator, kept = recorded(enabled="state", context="state")
    snapshot = allocator.snapshot()
    assert [entry["action"] for entry in snapshot["device_traces"][0]] == ["oom"]
    assert "frames" not in snapshot["device_traces"][0][0]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    (block,) = [block for block in blocks if block["address"] == kept.address]
    assert block["frames"] == frames()


def test_the_frames_of_an_address_are_those_of_the_block_that_is_there():
    names = iter(["first", "second", "third"])
    allocator = CachingAllocator(Device(64 * MIB), frames=lambda: [next(names)])
    allocator.record_history(context="alloc")
    first, second = allocator.malloc(512), allocator.malloc(512)
    assert [allocator.frames_of(one.address) for one in (first, second)] == [["first"], ["second"]]
    address = first.address
    allocator.free(first)
    assert allocator.frames_of(address) is None
    assert allocator.frames_of(second.address + 256) is None


def test_the_frames_of_a_free():
    """Checked on the oracle: with context "all" those of the free, with "alloc" those of the allocation."""
    names = iter(["malloc", "free", "malloc again"])
    allocator = CachingAllocator(Device(64 * MIB), frames=lambda: [next(names)])
    for context in ("all", "alloc"):
        allocator.record_history(context=context, clear_history=True)
        allocator.free(allocator.malloc(1))
        trace = {entry["action"]: entry["frames"] for entry in allocator.snapshot()["device_traces"][0]}
        expected = ["malloc", "free"] if context == "all" else ["malloc again"] * 2
        assert [trace["alloc"], trace["free_requested"]] == [[name] for name in expected]
        assert trace["free_completed"] == trace["free_requested"]


def test_a_segment_that_was_split_has_no_frames():
    """The remainder of the first split keeps them, and merges away (also on the oracle)."""
    allocator = CachingAllocator(Device(200 * MIB), frames=frames)
    allocator.record_history()
    whole, split = allocator.malloc(30 * MIB), allocator.malloc(3 * MIB)
    by_address = {segment["address"]: segment["frames"] for segment in allocator.snapshot_segments()}
    assert by_address == {whole.address: frames(), split.address: []}


def test_the_newest_events_are_kept():
    allocator, _ = recorded(max_entries=3, skip_actions=["oom"])
    actions = [entry["action"] for entry in allocator.snapshot()["device_traces"][0]]
    assert actions == ["alloc", "free_completed", "segment_free"]


def test_stopping_and_starting_again():
    allocator, kept = recorded()
    allocator.record_history(None)
    allocator.free(kept)
    assert allocator.snapshot()["device_traces"] == [[]]
    allocator.record_history("all")
    allocator.malloc(1)
    allocator.record_history("all", clear_history=True)
    assert allocator.snapshot()["device_traces"] == [[]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enabled": "yes"}, "expected enabled to be None, 'state' or 'all', got 'yes'"),
        ({"context": "none"}, "expected context to be None, 'state', 'alloc' or 'all', got 'none'"),
        ({"max_entries": -1}, "expected max_entries of at least 0, got -1"),
        ({"skip_actions": ["malloc"]}, r"unknown actions \['malloc'\]; the actions are alloc, "),
    ],
)
def test_recording_refuses_unknown_values(options, message):
    with pytest.raises(ValueError, match=message):
        CachingAllocator(Device(MIB)).record_history(**options)


# Files.


def test_written_and_read_again(tmp_path):
    snapshot = recorded()[0].snapshot()
    path = tmp_path / "snapshot.pickle"
    snapshots.write(snapshot, path)
    assert snapshots.read(path) == snapshot
    assert pickle.loads(path.read_bytes()) == snapshot


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty or ends too early"),
        (b"not a pickle", "no pickle, or a broken one"),
        (b"\x80\x04\xff\xff\xff", "no pickle, or a broken one"),
        (pickle.dumps([1, 2]), "expected a dictionary, got list"),
        (pickle.dumps({"segments": []}), r"expected a list under 'device_traces', got keys \['segments'\]"),
        (pickle.dumps({"segments": {}, "device_traces": []}), "expected a list under 'segments'"),
        (pickle.dumps(os.getcwd), r"refused: the pickle wants (posix|nt)\.getcwd"),
        (
            pickle.dumps({"segments": [], "device_traces": [Device]}),
            "refused: the pickle wants simgpu.allocator.physical",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=message) as caught:
        snapshots.read(path)
    assert str(path) in str(caught.value)


def test_every_cut_of_a_file_is_refused(tmp_path):
    path = tmp_path / "cut"
    content = pickle.dumps(recorded()[0].snapshot())
    for length in range(0, len(content) - 1, 97):
        path.write_bytes(content[:length])
        with pytest.raises(SnapshotError):
            snapshots.read(path)


def test_nothing_in_a_file_is_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    path = tmp_path / "harmful"
    path.write_bytes(pickle.dumps({"segments": [Harmful()], "device_traces": []}))
    with pytest.raises(SnapshotError, match=r"refused: the pickle wants _?io\.open"):
        snapshots.read(path)
    assert not (tmp_path / "harm").exists()


def test_only_snapshots_are_written_and_only_files_read(tmp_path):
    with pytest.raises(SnapshotError, match="what was given: expected a dictionary, got NoneType"):
        snapshots.write(None, tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        snapshots.read(tmp_path / "absent")


# Comparison.


def trace(*events):
    return {"segments": [], "device_traces": [[{"action": action, "size": size} for action, size in events]]}


A, B, C = ("alloc", 1), ("alloc", 2), ("free_completed", 1)


def test_equal_histories():
    first = recorded()[0].snapshot()
    comparison = snapshots.compare(first, recorded()[0].snapshot())
    assert comparison.equal
    assert comparison.common == comparison.first_events == comparison.second_events == 9


@pytest.mark.parametrize(
    ("first", "second", "common", "differences"),
    [
        ((), (), 0, []),
        ((A, B, C), (A, C), 2, [(1, (B,), 1, ())]),
        ((A, C), (A, B, C), 2, [(1, (), 1, (B,))]),
        ((A, A, A), (A, A), 2, [(2, (A,), 2, ())]),
        ((A, B, C), (B, B, C), 2, [(0, (A,), 0, (B,))]),
        ((A,), (), 0, [(0, (A,), 0, ())]),
        ((A, B, A, C), (B, A, C, C), 3, [(0, (A,), 0, ()), (3, (), 2, (C,))]),
    ],
)
def test_where_histories_differ(first, second, common, differences):
    comparison = snapshots.compare(trace(*first), trace(*second))
    found = [(d.first_start, d.first, d.second_start, d.second) for d in comparison.differences]
    assert found == differences
    assert comparison.common == common
    assert comparison.equal == (not differences)


def test_a_device_without_history():
    with pytest.raises(SnapshotError, match="no history of device 1: the snapshot has 1 devices"):
        snapshots.compare(trace(), trace(), device=1)


# PyTorch's own viewer.


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_memory_viz_takes_a_snapshot(conf, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    allocator, _ = recorded(conf)
    path = tmp_path / "snapshot.pickle"
    snapshots.write(allocator.snapshot(), path)
    snapshot = pickle.loads(path.read_bytes())
    assert "total_reserved" in viz.segsum(snapshot)
    listing = viz.trace(snapshot)
    assert "raise OutOfMemoryError # 300.0MiB requested, 178.0MiB free in CUDA" in listing
    for plot in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
        assert "<script" in plot


@pytest.mark.parametrize("with_frames", [True, False])
def test_the_older_way_to_record_a_history(with_frames):
    """torch.cuda.memory._record_memory_history(True): frames of living blocks, of events only if they are asked for."""
    with labkit.simulated_gpu():
        torch.cuda.memory._record_memory_history(
            True, trace_alloc_max_entries=100, trace_alloc_record_context=with_frames
        )
        kept = torch.empty(10, device="cuda")
        (event,) = [one for one in torch.cuda.memory._snapshot()["device_traces"][0] if one["action"] == "alloc"]
        assert bool(event.get("frames")) == with_frames
        del kept
