"""Snapshots and recordings from strangers: a clear error or a whole file, within bounds of memory and time.

Of each kind of file some are mutated; SIMGPU_MUTATED_FILES=1000 in the environment asks for as many.
"""

import gzip
import json
import os
import pickle
import random
import tracemalloc

import pytest
import torch

import simgpu
from labkit import plots
from simgpu.allocator import snapshot as snapshots
from simgpu.allocator.snapshot import SnapshotError
from simgpu.recording.trace import LARGEST, Trace

DEEP = 100_000
FILES = int(os.environ.get("SIMGPU_MUTATED_FILES", "200"))


@pytest.fixture(scope="module")
def snapshot():
    with simgpu.simulated_gpu("A100-80GB"):
        torch.cuda.memory._record_memory_history()
        x = torch.randn(1000, 1000, device="cuda")
        for _ in range(20):
            x = x @ x
        return torch.cuda.memory._snapshot()


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, doubled, or the end cut off."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(changed))
        kind = rng.randrange(5)
        if kind < 2:
            changed[at] = rng.randrange(256)
        elif kind == 2:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 9)]
        else:
            changed[at:at] = changed[at : at + rng.randrange(1, 9)]
        if not changed:
            break
    return bytes(changed if rng.random() < 0.9 else changed[: rng.randrange(len(changed) + 1)])


def peak_of(action) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_mutated_snapshots(snapshot, protocol, tmp_path):
    path, content, whole = tmp_path / "snapshot.pickle", pickle.dumps(snapshot, protocol), 0
    rng = random.Random(protocol)
    for _ in range(FILES):
        path.write_bytes(mutated(content, rng))
        try:
            found = snapshots.read(path)
        except SnapshotError as error:
            assert str(path) in str(error)
            continue
        whole += 1
        snapshots.compare(found, found)
        snapshots.write(found, tmp_path / "again.pickle")
    assert 0 < whole < FILES


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\x00\x00\x00\x10.",  # place 2**28 of the memo: 4 GB as a C array
        b"]p268435456\n.",
        b"]p-5\n.",
        b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"abc.",
        b"\x80\x04B" + (2**31).to_bytes(4, "little") + b".",
        b"\x80\x04\x95" + (2**50).to_bytes(8, "little") + b".",
        b"\x80\x04" + b"]" * DEEP + b"a" * (DEEP - 1) + b".",
        b"(" * DEEP + b"l" * DEEP + b".",
        b"I" + b"9" * DEEP + b"\n.",
        b"\x80\x04\x8b" + (2**20).to_bytes(4, "little") + b"\xff" * 2**20 + b".",
    ],
    ids=["memo", "memo in text", "memo below 0", "string", "bytes", "frame", "deep", "deep in text", "digits", "long"],
)
def test_pickles_that_ask_for_much(content, tmp_path):
    path = tmp_path / "hostile.pickle"
    path.write_bytes(content)

    def read():
        with pytest.raises(SnapshotError, match=r"hostile\.pickle"):
            snapshots.read(path)

    assert peak_of(read) < 200 * 2**20


def test_a_list_that_stands_everywhere_is_looked_at_once(tmp_path):
    block = {"size": 512, "state": "inactive"}
    blocks = [block] * 3000
    segment = {"address": 1, "total_size": 1, "blocks": blocks}
    path = tmp_path / "shared.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment] * 3000, "device_traces": [[]]}))
    assert len(snapshots.read(path)["segments"]) == 3000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["segments"][0].pop("total_size"), "segment 0: 'total_size' is missing, wanted int"),
        (lambda s: s["segments"][0]["blocks"][0].update(size="8"), "segment 0, block 0: 'size' is str, wanted int"),
        (lambda s: s["device_traces"][0].append(7), r"device 0, event \d+: expected a dictionary, got int"),
        (lambda s: s["device_traces"].append(None), "history of device 1: expected a list, got NoneType"),
        (lambda s: s["device_traces"][0][0].update(size=2**70), "event 0: 'size' is 1.18e.21"),
    ],
)
def test_what_is_wrong_is_named(snapshot, change, message, tmp_path):
    changed = pickle.loads(pickle.dumps(snapshot))
    change(changed)
    path = tmp_path / "changed.pickle"
    path.write_bytes(pickle.dumps(changed))
    with pytest.raises(SnapshotError, match=message):
        snapshots.read(path)


def test_a_whole_snapshot_can_be_drawn(snapshot, tmp_path):
    snapshots.write(snapshot, tmp_path / "whole.pickle")
    read = snapshots.read(tmp_path / "whole.pickle")
    with simgpu.simulated_gpu("A100-80GB"):
        assert plots.page_map(read["segments"]).axes


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    from simgpu.recording.history import record

    def pages(stage):
        kept = [torch.empty(1000 * number, device="cuda") for number in range(1, 40)]
        stage("full")
        del kept
        stage("empty")

    with simgpu.simulated_gpu("H100"):
        trace, _ = record("pages", pages, {"gpu": "H100"})
    path = tmp_path_factory.mktemp("recording") / "pages.json.gz"
    trace.save(path)
    return json.loads(gzip.decompress(path.read_bytes()))


def test_mutated_recordings(recording, tmp_path):
    text, path, whole = json.dumps(recording).encode(), tmp_path / "pages.json.gz", 0
    packed = gzip.compress(text)
    rng = random.Random(1)
    for number in range(FILES):
        inside = number % 4 > 0  # most changes of the packed bytes are found by gzip's checksum
        path.write_bytes(gzip.compress(mutated(text, rng), 1) if inside else mutated(packed, rng))
        try:
            found = Trace.load(path)
        except ValueError as error:
            assert str(path) in str(error)
            continue
        whole += 1
        assert found.peak >= 0
        found.save(tmp_path / "again.json.gz")
    assert 0 < whole < FILES


@pytest.mark.parametrize(
    "content",
    [b"[" * DEEP, b"1" * DEEP, b"[]," * LARGEST, b"\0" * (40 * LARGEST), b"[]", b"", b"\xff"],
    ids=["deep", "digits", "long", "a bomb", "no object", "empty", "no text"],
)
def test_recordings_that_ask_for_much(content, tmp_path):
    path = tmp_path / "hostile.json.gz"
    path.write_bytes(gzip.compress(content, 1))

    def load():
        with pytest.raises(ValueError, match=r"hostile\.json\.gz is not a"):
            Trace.load(path)

    assert peak_of(load) < 200 * 2**20


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("numbers", 5, "'numbers' is a int"),
        ("stages", [["a", -1, []]], "places of stages"),
        ("events_where", lambda r: [-1] * len(r["numbers"]), "events_where: -1 is no whole number"),
        ("numbers", lambda r: [10**6] * len(r["numbers"]), "a free of a block 1000000 allocations ago"),
        ("numbers", lambda r: [1.5] * len(r["numbers"]), "numbers: 1.5 is no whole number"),
        ("oom", 7, "'oom' is a int"),
    ],
)
def test_what_is_wrong_in_a_recording_is_named(recording, column, value, message, tmp_path):
    path = tmp_path / "changed.json.gz"
    changed = {**recording, column: value(recording) if callable(value) else value}
    changed |= {"counters": []} if column == "stages" else {}
    path.write_bytes(gzip.compress(json.dumps(changed).encode()))
    with pytest.raises(ValueError, match=message):
        Trace.load(path)
