"""The recorder, tried on the simulated GPU: what it writes, what it refuses, and that a recording can be replayed."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import labkit
import simgpu
from simgpu import record
from simgpu.recording import provenance, worker
from simgpu.recording.replay import SEGMENT, Replay, replay, table
from simgpu.recording.timing import step_times
from simgpu.recording.trace import Event, Stage, Trace
from simgpu.recording.workloads import SETTINGS, WORKLOADS, optimizers
from simgpu.recording.workloads.settings import changing_lengths

SMALL = ("pages", "half-linear-2", "optimizer-adamw", "optimizer-sgd-momentum-fused", "oom-fraction", "oom-backward")
DEVICE = {
    "made by": provenance.SIMULATED,
    "gpu": "NVIDIA H100 80GB HBM3",
    "total memory": 85017755648,
    "driver": "none",
    "torch": "2.13.0",
    "cuda": "none",
    "cudnn": "none",
    "transformers": "5.0",
    "date": "2026-11-21",
    "commit": "abc",
}


def simulated(name, gpu="H100", timed=True):
    """A recording of a workload, in this process."""
    with worker.in_environment_of(name), labkit.simulated_gpu(gpu) as device:
        return worker.recorded(name, DEVICE | {"gpu": device.name, "total memory": device.total_memory}, timed)


def run(*arguments):
    """The command line in a process of its own: its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "simgpu.record", *map(str, arguments)],
        cwd=provenance.CHECKOUT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


# --- what is recorded, and replayed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_recording_is_replayed_to_the_byte(name, tmp_path):
    simulated(name).save(tmp_path / "one.json.gz")
    found = replay(Trace.load(tmp_path / "one.json.gz"))
    assert found.differences() == []
    assert found.events[0] == found.events[1] > 0
    assert (found.peak_error, found.reserved_error) == (0, 0)
    assert {theirs - ours for theirs, ours in found.outside} == {0}
    assert found.time_error in (0, None)
    assert table([found]).loc[name, "allocated off by (B)"] == 0


def test_what_a_recording_of_linear_layers_holds():
    trace = simulated("half-linear-2")
    assert [stage.name for stage in trace.stages][:3] == ["model", "input", "forward"]
    assert trace.stages[0].allocated == 2 * 2**20
    assert trace.stages[1].allocated == 22 * 2**20
    assert trace.idle == 0
    assert all(stage.nvml > stage.reserved for stage in trace.stages)
    assert len(trace.step_ms) == 3 and trace.median_ms > 0
    assert trace.provenance["arguments"] == {"repeats": "2"}


def test_gradients_are_there_after_backward_and_gone_after_zero_grad():
    """Then cuBLAS' workspaces are left, 32 MiB each for the threads of forward and backward; and optimizers step on
    gradients of weights and biases in float32."""
    at = {stage.name: stage.allocated for stage in simulated("half-linear-2", timed=False).stages}
    assert at["zero_grad"] == at["input"] + 2 * 32 * 2**20
    at = {stage.name: stage.allocated for stage in simulated("optimizer-sgd", timed=False).stages}
    weights = [4 * a * b for a, b in pairwise(optimizers.WIDTHS)] + [4 * b for b in optimizers.WIDTHS[1:]]
    assert at["backward"] - at["second step"] == sum(-(-nbytes // 512) * 512 for nbytes in weights)


@pytest.mark.parametrize("name", ["oom-forward", "oom-backward", "oom-fraction"])
def test_out_of_memory_is_recorded(name):
    trace = simulated(name)
    assert trace.oom.startswith("CUDA out of memory. Tried to allocate")
    assert trace.stages[-1].name == "after the error"
    assert trace.events[-1].action == "oom" or any(event.action == "oom" for event in trace.events)
    assert trace.step_ms == ()


def test_a_setting_reaches_its_workload_and_no_other():
    # By the counters: on an H100 rounding to powers of two changes blocks here, and no event, on the oracle too.
    two = ("settings-roundup-power2", "settings-expandable-segments")
    default, *others = (simulated(name, timed=False) for name in ("settings-default", *two))
    assert default.provenance["settings"] == {}
    for name, trace in zip(two, others, strict=True):
        assert trace.provenance["settings"] == {"PYTORCH_ALLOC_CONF": SETTINGS[name]}
        assert [stage.stats for stage in trace.stages] != [stage.stats for stage in default.stages], name


def test_the_workload_of_the_settings_is_the_encoder_that_it_says():
    """Two layers of 512, with four times that inside: 4 d² + 2 · 4 d² weights each, and 13 d biases and norms."""
    with simgpu.simulated_gpu("H100"):
        sizes = []
        with pytest.raises(StopIteration):
            changing_lengths(lambda name: sizes.append(torch.cuda.memory_allocated()) or next(iter(())))
    assert sizes == [2 * 4 * (12 * 512**2 + 13 * 512)]


def test_settings_of_the_caller_are_not_recorded(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:21")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert not set(worker.environment_of("pages")) & set(provenance.VARIABLES)
    with worker.in_environment_of("settings-expandable-segments"):
        kept = {key: worker.os.environ.get(key) for key in provenance.VARIABLES if key in worker.os.environ}
    assert kept == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert worker.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_steps_are_timed_after_a_warm_up():
    calls = []
    with labkit.simulated_gpu("H100"):
        times = step_times(lambda: calls.append(None), warm_up=2, steps=4)
    assert len(calls) == 6 and len(times) == 4


def test_the_list_has_what_the_course_needs():
    names = " ".join(WORKLOADS)
    for family in ("three-linear", "bert-large-sdpa-bf16-training", "gpt2-small", "checkpointing", "accumulation"):
        assert family in names
    for family in ("resnet50", "vgg16", "batch-", "length-", "oom-", "optimizer-", *SETTINGS):
        assert family in names


# --- a replay says how far it is off ----------------------------------------------------------------------------------


def stage(name, allocated, reserved, nvml=None):
    counters = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current")
    return Stage(name, 1, dict(zip(counters, (allocated, allocated, reserved), strict=True)), nvml)


def test_differences_are_named():
    events = [Event("alloc", 512, 0, ""), Event("free_completed", 512, 0, "")]
    theirs = Trace(
        "w", events, [stage("end", 1024, 4 * SEGMENT, 5 * SEGMENT)], None, {}, SEGMENT // 2, (10.0, 30.0, 20.0)
    )
    ours = Trace("w", events[:1], [stage("end", 512, 2 * SEGMENT, 2 * SEGMENT)], None, {}, 0, (25.0,))
    found = Replay(theirs, ours)
    assert found.differences() == ["1 of 2 events", "allocated by 512 B", f"reserved by {2 * SEGMENT:,} B"]
    assert found.outside == [(SEGMENT // 2, 0)]
    assert found.time_error == 0.25
    assert Replay(theirs, replace(theirs, oom="CUDA out of memory.")).differences() == [
        "recorded 1 stages, to its end, simulated 1 stages, out of memory"
    ]


def test_frees_that_follow_each_other_may_come_in_any_order():
    def trace(*sizes):
        frees = [Event("free_completed", size, 0, "") for size in sizes]
        return Trace("w", [Event("alloc", 1, 0, ""), *frees, Event("alloc", 2, 0, "")], [])

    assert Replay(trace(8, 9), trace(9, 8)).events == (4, 4)
    assert Replay(trace(8, 9), trace(9, 7)).events[1] < 4


def test_reserved_memory_may_be_off_by_a_segment():
    pair = [Trace("w", [], [stage("end", 512, reserved)]) for reserved in (SEGMENT, 2 * SEGMENT)]
    assert Replay(*pair).differences() == []


def test_a_workload_that_has_changed_is_not_replayed():
    trace = simulated("pages")
    older = replace(trace, provenance={**trace.provenance, "source": "another"})
    with pytest.raises(ValueError, match="'pages' has changed since it was recorded: source 'another', now"):
        replay(older)
    with pytest.raises(ValueError, match="'gone' is recorded, and no longer a workload"):
        replay(replace(trace, workload="gone"))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", provenance.WANTED)
def test_nothing_is_recorded_without_provenance(key):
    provenance.check(DEVICE)
    with pytest.raises(provenance.ProvenanceError, match=f"without its provenance; missing: {key}"):
        provenance.check(DEVICE | {key: None})


def test_recordings_of_another_kind_are_kept_apart(tmp_path):
    provenance.check_same(tmp_path, DEVICE, DEVICE | {"date": "2026-12-01"})
    with pytest.raises(provenance.ProvenanceError, match="choose another --out: driver 'none' there, '580' now"):
        provenance.check_same(tmp_path, DEVICE, DEVICE | {"driver": "580"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "recordings/ is for recordings of GPUs, and this is the simulated GPU"),
        ({"made by": provenance.STUBS}, "under stub libraries"),
        ({"made by": provenance.GPU, "commit": "abc" + provenance.CHANGED}, "differs from its commit abc: commit"),
    ],
)
def test_the_projects_own_folder_is_for_gpus(change, message, tmp_path):
    record.check_place(tmp_path, DEVICE | change)
    with pytest.raises(provenance.ProvenanceError, match=message):
        record.check_place(record.HOME / "x", DEVICE | change)
    record.check_place(record.HOME / "x", DEVICE | {"made by": provenance.GPU})


def test_the_commit_is_gits_or_is_given(tmp_path):
    assert provenance.commit_of(checkout=tmp_path) is None
    assert provenance.commit_of("abc", checkout=tmp_path) == "abc"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "simgpu").mkdir()
    (tmp_path / "simgpu" / "a.py").write_text("")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = provenance.commit_of(checkout=tmp_path)
    assert len(commit) == 40
    assert provenance.commit_of(commit[:8], checkout=tmp_path) == commit
    with pytest.raises(provenance.ProvenanceError, match="this checkout is at"):
        provenance.commit_of("0000000", checkout=tmp_path)
    (tmp_path / "simgpu" / "a.py").write_text("changed")
    assert provenance.commit_of(checkout=tmp_path) == commit + provenance.CHANGED


def test_a_recording_is_never_overwritten(tmp_path):
    trace = simulated("pages")
    path = tmp_path / "pages.json.gz"
    trace.save(path, replace=False)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        replace(trace, workload="other").save(path, replace=False)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["pages.json.gz"]


def test_a_recording_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def fail(*arguments, **named):
        raise OSError("no space left on device")

    trace = simulated("pages")
    monkeypatch.setattr("os.link", fail)
    with pytest.raises(OSError, match="no space"):
        trace.save(tmp_path / "pages.json.gz", replace=False)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_or_cut_file_is_named(tmp_path):
    path = tmp_path / "pages.json.gz"
    simulated("pages").save(path)
    whole = path.read_bytes()
    for length in (0, 1, 9, 20, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"pages\.json\.gz is not a (whole )?trace"):
            Trace.load(path)
    for place in range(12, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"pages\.json\.gz is not a (whole )?trace"):
            Trace.load(path)
    columns = json.loads(gzip.decompress(whole))
    columns["numbers"].pop()
    path.write_bytes(gzip.compress(json.dumps(columns).encode()))
    with pytest.raises(ValueError, match=r"pages\.json\.gz is not a trace"):
        Trace.load(path)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_programs")
def test_the_device_is_told_by_a_process_of_its_own():
    status, said = run("--simulated", "H100", "--out", record.HOME / "x", "--only", "pages")
    assert status == 2 and "recordings/ is for recordings of GPUs, and this is the simulated GPU" in said, said
    assert not (record.HOME / "x").exists()


@pytest.mark.usefixtures("forked_programs")
def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch, capsys):
    """The processes that record are real; the device is fixed, since the checkout's commit may change meanwhile."""
    device = dict(DEVICE)
    monkeypatch.setattr(record, "device_of", lambda options: device)
    folder = tmp_path / "H100"
    ask = ["--simulated", "H100", "--out", str(folder), "--only", "pages", "optimizer-sgd"]
    assert record.main(ask) == 0, capsys.readouterr().out
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(files) == ["optimizer-sgd.json.gz", "pages.json.gz"]
    assert Trace.load(folder / "pages.json.gz").provenance.items() >= DEVICE.items()
    assert len(Trace.load(folder / "optimizer-sgd.json.gz").step_ms) == 3

    (folder / "optimizer-sgd.json.gz").unlink()
    assert record.main(ask) == 0
    assert "pages: kept" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files

    device["commit"] = "another"
    with pytest.raises(SystemExit):
        record.main(ask)
    assert "holds recordings of another kind, choose another --out: commit 'abc' there" in capsys.readouterr().err
    device["commit"] = "abc"
    (folder / "pages.json.gz").write_bytes(files["pages.json.gz"][:500])
    with pytest.raises(SystemExit):
        record.main(ask)
    assert "pages.json.gz is not a whole trace" in capsys.readouterr().err


def test_recordings_are_compared(tmp_path, capsys):
    simulated("half-linear-2").save(tmp_path / "half-linear-2.json.gz")
    record.compare(tmp_path, record.chosen(["half-*"]))
    said = capsys.readouterr().out
    assert "recorded by the simulated GPU" in said and "half-linear-2" in said
    with pytest.raises(ValueError, match="no recording of these workloads"):
        record.compare(tmp_path, ["pages"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing-*"], "no workload is called nothing-*; --list has the names"),
        (["--simulated", "H100"], "--simulated wants --out FOLDER"),
    ],
)
def test_a_wrong_call_is_answered(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        record.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_names_are_listed(capsys):
    assert record.main(["--list", "--only", "pages", "copy-*"]) == 0
    assert capsys.readouterr().out == "pages\ncopy-1GiB\n"


def test_a_workload_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "device_of", lambda options: DEVICE)

    def run_worker(name, path, device, options):
        if name == "pages":
            return "RuntimeError: broken"
        simulated(name).save(path, replace=False)
        return None

    monkeypatch.setattr(record, "run_worker", run_worker)
    given = ["--simulated", "H100", "--out", str(tmp_path / "new"), "--only", "pages", "optimizer-sgd"]
    assert record.main(given) == 1
    said = capsys.readouterr().out
    assert "pages: FAILED\nRuntimeError: broken" in said and "failed: pages" in said
    assert (tmp_path / "new" / "optimizer-sgd.json.gz").exists()


def test_the_last_lines_of_a_worker_that_failed_are_told(tmp_path, monkeypatch):
    said = [f"line {number}" for number in range(30)]
    ended = SimpleNamespace(returncode=1, stderr="\n".join(said) + "\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    options = SimpleNamespace(simulated="T4", timeout=1)
    assert record.run_worker("pages", tmp_path / "pages", DEVICE, options) == "\n".join(said[-12:])
    ended.stderr = ""
    assert record.run_worker("pages", tmp_path / "pages", DEVICE, options) == "ended with status 1"


def test_the_recorder_needs_no_jupyter():
    names = ("IPython", "ipykernel", "ipywidgets", "jupyterlab", "jupyter_core", "nbconvert", "nbformat", "torchinfo")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({(*names, 'accelerate', 'sortedcontainers')}))\n"
        "from simgpu import record; sys.exit(record.main(['--list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=provenance.CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(WORKLOADS)
