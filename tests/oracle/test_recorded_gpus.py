"""Every recording in recordings/ against the simulated GPU of the same kind; the same code on a simulated recording."""

from pathlib import Path

import pytest
import torch

import labkit
from simgpu import record
from simgpu.recording import provenance, worker
from simgpu.recording.replay import Replay, replay
from simgpu.recording.trace import Trace

RECORDINGS = sorted(record.HOME.glob(f"*/*{record.SUFFIX}"))
INSTALLED = torch.__version__.split("+")[0]


def findings(found: Replay):
    """What makes the findings of a recording: events, peaks and reserved memory with the times, NVML's figure."""
    name, gpu = found.recorded.workload, found.recorded.provenance["gpu"]
    differing, (of, equal) = found.differences(), found.events
    wrong = [each for each in differing if not each.endswith("events")]
    times = {"step, ms": found.recorded.median_ms, "simulated step, ms": found.simulated.median_ms}
    yield 2, f"events of a {gpu}", "events", name, of, equal, f"{of - equal} events" if equal < of else "", {}
    yield (
        3, f"peaks of a {gpu}", "workloads", name, 1, int(not wrong), "; ".join(wrong),
        {"peak": found.recorded.peak, "reserved off by": found.reserved_error}
        | {key: ms for key, ms in times.items() if ms is not None},
    )  # fmt: skip
    if found.outside:
        off = [abs(theirs - ours) for theirs, ours in found.outside]
        said = f"what is outside PyTorch by up to {max(off):,} B" if any(off) else ""
        yield 4, f"NVML on a {gpu}", "stages", name, len(off), off.count(0), said, {"off by": max(off)}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_a_recorded_gpu_is_simulated(path: Path, exactness):
    trace = Trace.load(path)
    assert trace.provenance["made by"] == provenance.GPU
    recorded_on = trace.provenance["torch"].split("+")[0]
    if recorded_on != INSTALLED:
        pytest.skip(f"recorded with torch {recorded_on}, and {INSTALLED} is installed")
    for rung, result, unit, item, of, equal, difference, measures in findings(replay(trace)):
        exactness(rung, result, provenance.GPU, unit, item, of, equal, difference, measures)


def test_what_is_found_in_a_recording(tmp_path):
    device = {"made by": provenance.SIMULATED, "gpu": "H100"}
    with labkit.simulated_gpu("H100") as gpu:
        trace = worker.recorded("half-linear-2", device | {"total memory": gpu.total_memory})
    trace.save(tmp_path / "one.json.gz")
    events, peaks, nvml = findings(replay(Trace.load(tmp_path / "one.json.gz")))
    assert events[:3] == (2, "events of a H100", "events") and events[4] == events[5] == len(trace.events)
    assert peaks[4:7] == (1, 1, "") and peaks[7]["peak"] == trace.peak
    assert peaks[7]["step, ms"] == peaks[7]["simulated step, ms"] > 0
    assert nvml[4:7] == (len(trace.stages), len(trace.stages), "")


@pytest.mark.parametrize(
    "folder", [path for path in record.HOME.glob("*") if path.is_dir()], ids=lambda path: path.name
)
def test_a_folder_is_of_one_gpu(folder: Path):
    traces = [Trace.load(path) for path in folder.glob(f"*{record.SUFFIX}")]
    for trace in traces:
        provenance.check(trace.provenance)
        provenance.check_same(folder, trace.provenance, traces[0].provenance)


def test_the_readme_says_whether_a_gpu_was_recorded():
    said = (record.HOME / "README.md").read_text(encoding="utf-8")
    assert ("No GPU has been recorded yet" in said) == (not RECORDINGS)
