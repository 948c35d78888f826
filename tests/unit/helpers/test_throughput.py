"""The table of training speeds: its estimates, and published rows that are those of recordings/published_times.yaml."""

import pytest
import torch
from torch import nn

import labkit
from helpers.plans import MODELS
from helpers.throughput import as_published, estimate_of, ranges, speeds
from labkit import published
from simgpu.report.speed import Shape
from tools.times.published import rows

SHAPE = Shape(trained=10**9, frozen=0, attention=0, experts=False)


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield labkit.gpu.current()


def test_a_step_of_the_clock_gets_the_fitted_factor_and_its_range(gpu):
    table = speeds({"one": (1000, 0.1)}, SHAPE, 512)
    taken = estimate_of(0.1, gpu)
    assert taken.low < 0.1 < taken.seconds < taken.high
    shown, reach, mfu = table.loc["one"]
    assert float(shown.replace(",", "")) == pytest.approx(1000 / taken.seconds, rel=0.05)
    assert [float(one.replace(",", "")) for one in reach.split(" to ")] == [
        pytest.approx(1000 / end, rel=0.05) for end in (taken.high, taken.low)
    ]
    assert float(mfu) == pytest.approx(100 * 6e9 * 1000 / taken.seconds / 312e12, rel=0.05)
    assert table.index.name == "simulated A100-80GB"


def test_a_stopwatch_a_model_and_attention(gpu):
    with torch.device("meta"):
        model = nn.Linear(1000, 1000, bias=False)
    x = torch.zeros(1000, 1000, device="cuda")
    with labkit.stopwatch() as timing:
        x @ x
    plain, attending = (speeds({"one": (1000, timing)}, model, 1000, "float32", attention=n) for n in (0, 500))
    assert plain.loc["one", "tokens/s per GPU"] == attending.loc["one", "tokens/s per GPU"]
    ratio = float(attending.loc["one", "MFU (%)"]) / float(plain.loc["one", "MFU (%)"])
    assert ratio == pytest.approx((6 * 10**6 + 12 * 500 * 1000) / (6 * 10**6), rel=0.1)
    built = speeds({"one": (1000, timing)}, lambda: nn.Linear(1000, 1000, bias=False), 1000, "float32")
    assert built.equals(plain)


def test_a_real_gpus_time_is_measured_and_has_no_range(gpu):
    real = labkit.gpu.GPU(False, "a card that nobody knows", 2**34)
    table = speeds({"one": (1000, labkit.timing.Timing("", real, ms=100.0))}, SHAPE, 512)
    assert list(table.loc["one"]) == ["10,000", "measured", "unknown"]


def test_a_type_without_a_peak_has_no_mfu():
    with labkit.simulated_gpu("T4"):
        assert speeds({"one": (1000, 0.1)}, SHAPE, 512, "bfloat16").loc["one", "MFU (%)"] == "unknown"


def test_a_model_of_the_plans_counts_as_the_published_one(gpu):
    big = MODELS["405B"]
    ours = speeds({"it": (1, 0.01)}, big, 8192)
    of_shape = speeds({"it": (1, 0.01)}, Shape(403752042496, 0, 2064384, experts=False), 8192)
    assert ours.equals(of_shape)
    assert published.values("training speeds")["Llama 405B, 1F1B"]["parameters"] == big.parameters - big.of_words


def test_ranges_are_those_of_the_table(gpu):
    table = speeds({"one": (1000, 0.1)}, SHAPE, 512)
    seconds, rate, mfu = ranges(SHAPE, 512, 1000, 0.1)
    middle, reach, share = table.loc["one"]
    assert rate == f"{middle} ({reach})"
    assert mfu.startswith(f"{share} (")
    taken = estimate_of(0.1, gpu)
    assert float(seconds.partition(" ")[0]) == pytest.approx(taken.seconds, rel=0.05)
    with labkit.simulated_gpu("T4"):
        assert ranges(SHAPE, 512, 1000, 0.1)[2] == "unknown"


def test_published_speeds_have_the_cells_of_ranges(gpu):
    assert as_published("Llama 70B") == {"torchtitan: 70B, 256 × H100, TP 8": ["", "597.3 (published)", "25"]}
    [(_, rate, mfu)] = as_published("Llama 3 70B").values()
    assert rate == "331 (published)"
    assert float(mfu) == pytest.approx(51.7, rel=0.03)  # as printed there, with the embedding counted
    with pytest.raises(KeyError, match="no published speed is named"):
        as_published("no such model")


def test_names_that_begin_alike(gpu):
    assert list(speeds({}, SHAPE, 512, like=["Llama 405B"])["tokens/s per GPU"]) == ["100", "128"]


def test_what_is_refused(gpu):
    with pytest.raises(ValueError, match="a step of 0"):
        speeds({"one": (1000, 0.0)}, SHAPE, 512)
    with pytest.raises(KeyError, match=r"'no such model'\.\.\.; there are MPT 125M"):
        speeds({}, SHAPE, 512, like=["no such model"])


@pytest.mark.parametrize("name", published.values("training speeds"))
def test_published_speeds_are_those_of_the_recordings(name, gpu):
    one = published.values("training speeds")[name]
    same = [
        row
        for row in rows()
        if (row.source, row.gpu, row.figure) == (one["source"], one["gpu"], one["figure"])
        and row.unit == "tokens/s/GPU"
        and row.half == "fit"
    ]
    assert len(same) == 1
    assert (same[0].tokens or 0) == one["length"]
    assert speeds({}, SHAPE, 512, like=[name]).iloc[0, 0] == f"{one['figure']:,}"
