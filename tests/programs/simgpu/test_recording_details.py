"""What a recording holds, and how recordings are replayed and read: sizes, stages, tables, traces."""

import gzip
import inspect
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers

import simgpu
from simgpu.recording import history, worker
from simgpu.recording.replay import Replay
from simgpu.recording.replay import table as replay_table
from simgpu.recording.trace import Event, Trace
from simgpu.recording.workloads import WORKLOADS, language, models, sweeps, vision


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


def test_sizes_of_what_is_recorded():
    """BERT's heads have 64 channels in both sizes (Devlin et al., 2018), and lengths are whole warps."""
    for size in (models.BERT_BASE, models.BERT_LARGE):
        assert size["hidden_size"] == 64 * size["num_attention_heads"]
        assert size["intermediate_size"] == 4 * size["hidden_size"]
    assert all(length % 32 == 0 for length in sweeps.LENGTHS)
    assert {f"length-{length}" for length in sweeps.LENGTHS} <= set(WORKLOADS)


def test_a_worker_saves_what_it_records(tmp_path, monkeypatch):
    file = tmp_path / "small.json.gz"

    def small(stage):
        x = torch.ones(100, device="cuda")
        stage("made")
        del x

    monkeypatch.setattr(worker, "WORKLOADS", {"small": small})
    worker.main(["small", str(file), '{"made by": "a test"}', "--simulated", "T4"])
    assert Trace.load(file).stages[0].name == "made"


def test_stages_lie_where_they_were_called():
    def workload(stage):
        kept = []
        for number in range(3):
            kept.append(torch.ones(100, device="cuda"))
            stage(str(number))

    with simgpu.simulated_gpu("T4"):
        trace, _ = history.record("three", workload, {})
    actions = [[event.action for event in trace.events[: stage.at]] for stage in trace.stages]
    assert [one.count("alloc") for one in actions] == [1, 2, 3]


def test_what_an_emptied_cache_gives_back_is_of_the_stage_before():
    def workload(stage):
        x = torch.ones(100, device="cuda")
        stage("made")
        del x
        torch.cuda.empty_cache()
        stage("emptied")
        torch.ones(100, device="cuda")
        stage("made again")

    with simgpu.simulated_gpu("T4"):
        trace, _ = history.record("emptied", workload, {})
    made, emptied, again = ([event.action for event in trace.events[: stage.at]] for stage in trace.stages)
    assert made == ["segment_alloc", "alloc"]
    assert emptied == [*made, "free_completed", "segment_free"]
    assert again == [*emptied, *made, "free_completed"]


def test_the_table_of_replays_is_in_the_units_that_it_names():
    one = SimpleNamespace(
        recorded=SimpleNamespace(workload="w", peak=3 * 2**20, median_ms=2.0),
        simulated=SimpleNamespace(median_ms=3.0),
        events=(7, 5),
        outside=[(None, None), (5 * 2**20, 7 * 2**20)],
        peak_error=-512,
        reserved_error=2 * 2**20,
        time_error=0.5,
    )
    found = replay_table([one]).loc["w"].to_dict()
    assert found == {
        "events equal": "5 of 7",
        "peak (MiB)": 3,
        "allocated off by (B)": -512,
        "reserved off by (MiB)": 2,
        "outside PyTorch (MiB)": 5,
        "simulated outside (MiB)": 7,
        "step (ms)": 2,
        "simulated step (ms)": 3,
        "time error (%)": 50,
    }


def test_recordings_without_stages_agree():
    assert Replay(Trace("w", [], []), Trace("w", [], [])).peak_error == 0


def test_vgg16_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert sum(p.numel() for p in vision.vgg16().parameters()) == 138_357_544


def test_convolutions_of_vision_are_recorded_with_tf32(gpu):
    allowed = []

    def make():
        layers = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000))
        layers.register_forward_pre_hook(lambda *_: allowed.append(torch.backends.cudnn.allow_tf32))
        return layers

    with torch.backends.cudnn.flags(allow_tf32=False):
        vision.training(lambda name: None, make, batch=1)
    assert allowed[:2] == [True, True]


def test_the_same_batch_is_recorded_twice_under_two_names():
    assert WORKLOADS["batch-8"].keywords == WORKLOADS["length-128"].keywords


def test_two_steps_of_accumulation_are_told_stage_by_stage(gpu, monkeypatch):
    small = partial(transformers.GPT2Config, n_layer=1, n_embd=64, n_head=2, vocab_size=1000)
    monkeypatch.setattr(transformers, "GPT2Config", small)
    told = []
    language.gpt2_training(told.append, batch=1, length=8, micro_batches=2)
    step = [*2 * ["forward", "backward"], "step"]
    assert told == ["model", "input", *step, "first step", *step, "second step"]


def test_accumulation_is_of_as_many_sequences_as_without_it():
    whole = inspect.signature(language.gpt2_training).parameters["batch"].default
    for name in ("accumulation", "accumulation-checkpointing-bf16"):
        given = WORKLOADS[name].keywords
        assert given["batch"] * given["micro_batches"] == whole


def test_a_trace_whose_columns_are_not_alike_is_none(tmp_path):
    path = tmp_path / "trace.json.gz"
    Trace("w", [Event("alloc", 512, 0, ""), Event("free_completed", 512, 0, "")], []).save(path)
    columns = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("numbers", "events_where"):
        path.write_bytes(gzip.compress(json.dumps(columns | {name: [*columns[name], 0]}).encode()))
        with pytest.raises(ValueError, match="is not a trace"):
            Trace.load(path)
