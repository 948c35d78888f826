"""Times are printed as estimates: with a factor and a range by kind of work, and with two digits."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import simgpu
from simgpu.clock import ranges
from simgpu.gpus.specs import SPECS
from simgpu.report.report import Report


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.13949, "140 ms"),
        (0.0996, "100 ms"),
        (1.949, "1.9 s"),
        (0.998, "1.0 s"),
        (84, "84 s"),
        (1234, "1,200 s"),
        (0.00123, "1.2 ms"),
        (3.6e-6, "3.6 µs"),
        (2e-9, "0.0020 µs"),
        (0, "0 µs"),
    ],
)
def test_a_time_has_two_digits(seconds, text):
    assert ranges.two_digits(seconds) == text


@given(st.floats(1e-6, 1e6))
def test_two_digits_are_within_five_percent(seconds):
    number, unit = ranges.two_digits(seconds).split()
    value = float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
    assert value == pytest.approx(seconds, rel=0.05)


def test_a_range_names_its_unit_once_where_it_can():
    assert ranges.between(0.12, 0.3) == "120 to 300 ms"
    assert ranges.between(0.5, 1.25) == "500 ms to 1.2 s"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("gpu", SPECS)
def test_every_gpu_has_a_factor_and_a_range_around_it(gpu, ranks, training):
    found = ranges.estimate(2.0, gpu, training, ranks)
    factor = ranges.factors()[found.kind]
    assert 0 < found.low < found.middle < found.high
    assert found.middle == 2 * factor.middle
    assert factor.sources and (factor.rows > 0) != bool(factor.of)


def test_classes_go_by_compute_capability():
    assert [ranges.class_of(gpu) for gpu in ("T4", "RTX 4090", "B200")] == list(ranges.CLASSES)
    with pytest.raises(ValueError, match="unknown GPU 'RTX 9999'"):
        ranges.class_of("RTX 9999")


def test_a_report_prints_the_estimate_and_its_document_has_it():
    fit = simgpu.fit(lambda: nn.Linear(512, 512), inputs=lambda n: torch.zeros(n, 512), batch=8, gpu="RTX 4090")
    page, document = fit.page, fit.page.document()
    factor = ranges.factors()["training, Ampere and Ada, one GPU"]
    assert document["step_time"]["middle"] == pytest.approx(fit.step * factor.middle)
    assert document["time"]["clock"] == page.seconds
    step, run = re.findall(r"about [\d.]+ \w+ \(an estimate, [\d.]+(?: \w+)? to [\d.]+ \w+\)", str(page))
    assert step == str(fit.step_time) and run == str(page.time)
    assert "clock" not in str(page)
    assert replace(page, seconds=0.0).time is None


def test_inference_and_several_gpus_are_kinds_of_their_own():
    make = {"inputs": lambda n: torch.zeros(n, 64), "batch": 8, "gpu": "H100"}
    served = simgpu.fit(lambda: nn.Linear(64, 64), optimizer=None, **make)
    assert served.step_time.kind == "inference, Hopper and Blackwell, one GPU"
    ranked = simgpu.fit(lambda: nn.Linear(64, 64), ranks=2, **make)
    assert ranked.step_time.kind == "training, Hopper and Blackwell, several GPUs"


def test_a_stored_report_has_the_estimate_again(tmp_path):
    fit = simgpu.fit(lambda: nn.Linear(64, 64), inputs=lambda n: torch.zeros(n, 64), gpu="T4")
    fit.page.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").step_time == fit.step_time


def test_tokens_and_mfu_follow_from_the_estimate():
    from transformers import LlamaConfig

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=512)
    fit = simgpu.fit(config, 2, "sgd", length=64, dtype="bf16", gpu="A100-80GB", accumulate=3)
    assert fit.tokens_per_second == pytest.approx(2 * 3 * 64 / fit.step_time.middle)
    parameters = sum(one.numel() for one in fit.subject.build(None).parameters())
    assert fit.mfu == pytest.approx(6 * parameters * fit.tokens_per_second / SPECS["A100-80GB"].peak_flops["bfloat16"])
    assert "tokens/s per GPU, MFU " in str(fit)
    assert "MFU" not in str(fit.changed(lora=4))


def test_a_model_without_a_length_has_no_tokens():
    fit = simgpu.fit(lambda: nn.Linear(64, 64), inputs=lambda n: torch.zeros(n, 64), gpu="T4")
    assert fit.tokens_per_second == 0 and fit.mfu == 0 and "tokens" not in fit.page.ended
