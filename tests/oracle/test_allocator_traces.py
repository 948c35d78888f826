"""Replaying recorded requests gives every recorded address and segment."""

import gzip
import json
from pathlib import Path

import pytest

from tests.exactness import ORACLE
from tests.oracle.replaying import replay

ROOT = Path(__file__).parents[2]
RECORDINGS = sorted((ROOT.parent / "shared" / "recordings").glob("*.json.gz"))
REAL_GPU = "recordings of a real GPU, torch 2.6; they are not distributed with the project"
TRACES = sorted((ROOT / "tests" / "data" / "allocator_traces").glob("*.json.gz"))


def load(path: Path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.skipif(not RECORDINGS, reason="the recordings of a real GPU are not beside this checkout")
def test_recordings_of_a_real_gpu(exactness):
    """Eight traces, torch 2.6: 19,421 allocations and 486 segments, none of them elsewhere."""
    allocations = segments = 0
    for path in RECORDINGS:
        recording = load(path)
        assert recording["origin"]["torch"].startswith("2.6")
        recorded, model, recorded_segments, model_segments = replay(recording["events"], (2, 6))
        assert model == recorded, path.name
        assert model_segments == recorded_segments, path.name
        allocations += len(model)
        segments += len(model_segments)
        for unit, count in (("addresses", len(model)), ("segments", len(model_segments))):
            exactness(1, f"{unit} of a real GPU", REAL_GPU, unit, path.name.split(".")[0], count, count)
    assert (allocations, segments) == (19_421, 486)


def test_there_are_traces():
    assert len(TRACES) >= 4


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_traces_of_pytorchs_own_allocator(path, exactness):
    trace = load(path)
    version = tuple(int(part) for part in trace["torch"].split(".")[:2])
    recorded, model, recorded_segments, model_segments = replay(trace["events"], version)
    assert model == recorded
    assert model_segments == recorded_segments
    assert len(model) > 50
    exactness(1, "addresses of the oracle", ORACLE, "addresses", path.name.split(".")[0], len(model), len(model))


@pytest.mark.skipif(not RECORDINGS, reason="the recordings of a real GPU are not beside this checkout")
def test_the_tie_break_of_a_newer_torch_gives_other_addresses():
    """The test above can fail: with the rule of torch 2.13 some of torch 2.6's addresses differ."""
    recorded, model, _, _ = replay(load(RECORDINGS[-1])["events"], (2, 13))
    assert model != recorded
