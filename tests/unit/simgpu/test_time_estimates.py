"""A simulated time is printed as an estimate with two digits and a range, and the factors come from the data file."""

import json

import pytest
import torch

import simgpu
from simgpu.clock import estimates
from simgpu.clock.clock import Clock, Reading
from simgpu.clock.estimates import HOST, INFERENCE, NEW, OLDER, RTX, TRAINING, Factor, TimeEstimate
from simgpu.gpus.specs import SPECS, spec
from simgpu.report.compare import Difference
from simgpu.report.speed import Shape, shape_of, speed

KNOWN = (
    Factor(TRAINING, NEW, 20, 3, 1.0, 2.0, 3.0),
    Factor(TRAINING, "", 40, 5, 1.0, 1.5, 2.0),
    Factor(INFERENCE, "", 10, 1, 1.0, 1.1, 1.2),
    Factor(HOST, "", 5, 2, 1.0, 2.0, 4.0),
)


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(estimates, "factors", lambda: KNOWN)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (3, "3.0"), (14.51, "15"), (139.5, "140"), (12345, "12,000"), (99.6, "100"), (0, "0")],
)
def test_numbers_have_two_digits(value, text):
    assert estimates.digits(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1395, "140 ms"), (1.0, "1.0 s"), (0.9996, "1.0 s"), (4e-6, "4.0 µs"), (2e-8, "0.020 µs"), (5000, "5,000 s")],
)
def test_times_have_a_unit(seconds, text):
    assert estimates.duration(seconds) == text


def test_a_range_has_its_unit_once_if_it_can():
    assert estimates.between(0.11, 0.22) == ("110", "220 ms")
    assert estimates.between(0.5, 1.2) == ("500 ms", "1.2 s")


def test_every_gpu_has_a_class_and_factors():
    classes = {name: estimates.class_of(one) for name, one in SPECS.items()}
    assert classes["RTX 4090"] == RTX and classes["H100"] == NEW and classes["A100-80GB"] == OLDER
    for gpus in classes.values():
        for work in (TRAINING, INFERENCE, HOST):
            found = estimates.factor(work, gpus)
            assert 0 < found.low < found.middle < found.high and found.rows > 0


def test_a_class_without_a_factor_has_that_of_all_gpus():
    assert estimates.factor(TRAINING, NEW, KNOWN) is KNOWN[0]
    assert estimates.factor(TRAINING, RTX, KNOWN) is KNOWN[1]


def test_the_longer_of_gpu_and_host_decides():
    reading = Reading(seconds=10, busy=8, issuing=3)
    assert estimates.scaled(reading, 1, 1) == 10
    assert estimates.scaled(reading, 2, 1) == 18
    assert estimates.scaled(reading, 1, 5) == 17
    assert estimates.scaled(reading._replace(busy=25), 2, 1) == 20  # transfers run while kernels do


def test_the_estimate_and_its_text(known):
    found = estimates.estimated(Reading(0.07, 0.07, 0.001, backward=0.04), "H100")
    assert found == TimeEstimate(0.07, 0.14, 0.07, pytest.approx(0.212), "training on GPUs like the H100", 20)
    assert str(found) == "about 140 ms, estimate; 70 to 210 ms for training on GPUs like the H100"
    inference = estimates.estimated(Reading(0.07, 0.07, 0.001), "H100")
    assert inference is not None and str(inference).endswith("for inference on any GPU")
    assert estimates.estimated(Reading(), "H100") is None


def test_a_host_that_the_user_gave_is_taken_as_known(known):
    reading = Reading(1.0, 0.1, 1.0)
    unknown, given = (estimates.estimated(reading, "T4", slowness) for slowness in (1.0, 2.5))
    assert unknown is not None and (unknown.seconds, unknown.high) == (2.0, pytest.approx(4.11))
    assert given is not None and (given.seconds, given.low, given.high) == (1.0, 1.0, pytest.approx(1.11))


def test_host_and_gpu_do_not_overlap_at_the_upper_end():
    known = Factor(TRAINING, "", 9, 3, 1.0, 2.0, 3.0)
    assert estimates.bounds(Reading(10, 10, 4), known, (1.0, 0.5, 2.0)) == (20, 10, 30 + 4)


def test_times_differ_if_their_ranges_do_not_overlap():
    one, near, far = (TimeEstimate(x, x, 0.8 * x, 1.2 * x, "training", 9) for x in (1.0, 1.3, 2.0))
    assert one.differs(far) and far.differs(one) and not one.differs(near)


def test_the_clock_counts_what_the_gpu_the_host_and_autograd_do():
    clock = Clock(spec("H100"))
    clock.launch(0, 1e-3, kernels=2)
    clock.synchronize()
    found = clock.reading()
    assert found.seconds == clock.host and found.backward == 0
    assert 1e-3 < found.busy < 1.1e-3 and 1e-5 < found.issuing < 2e-5
    assert clock.reading().since(found) == Reading()


def train(width=512, steps=2):
    model = torch.nn.Linear(width, width, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.ones(4096, width, device="cuda")).sum().backward()
        optimizer.step()


def test_a_report_has_the_time_with_its_range(tmp_path):
    report = simgpu.run(train, gpu="RTX 4090")
    assert report.time is not None and report.time.low < report.time.seconds < report.time.high
    assert f"the run takes {report.time};" in str(report) and " for training on " in str(report)
    assert report.document()["time"]["seconds"] == report.time.seconds
    report.save(tmp_path / "report.json")
    assert type(report).load(tmp_path / "report.json").time == report.time
    assert "for inference on" in str(simgpu.run(lambda: torch.ones(2**20, device="cuda") * 2, gpu="T4"))


def test_a_difference_says_which_is_faster_only_if_the_ranges_are_apart(tmp_path):
    for name, steps in (("one", 2), ("near", 3), ("far", 200)):
        simgpu.run(lambda steps=steps: train(steps=steps), gpu="RTX 4090").save(tmp_path / f"{name}.json")
    near = str(Difference.of(tmp_path / "one.json", tmp_path / "near.json"))
    assert "The ranges overlap, so which run is faster is not known." in near
    far = str(Difference.of(tmp_path / "one.json", tmp_path / "far.json"))
    assert "The run takes longer, because the ranges do not overlap." in far


class Small(torch.nn.Module):
    """An embedding, a layer that is trained, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.trained, self.frozen = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4).requires_grad_(False)


def test_the_formula_counts_parameters_that_are_used_in_matmuls():
    model = Small()
    assert shape_of(model) == Shape(trained=72, frozen=36, attention=0, experts=False)
    model.head = torch.nn.Linear(8, 100, bias=False)
    model.head.weight = model.embedding.weight  # tied: it is the output layer, too
    assert shape_of(model).trained == 72 + 800


def test_tokens_per_second_and_mfu():
    time = TimeEstimate(1.0, 2.0, 1.0, 4.0, "training on GPUs like the H100", 20)
    found = speed(Shape(1000, 0, 10, False), length=50, tokens=200, time=time, peak=1e6)
    assert (found.tokens_per_second, found.low, found.high) == (100, 50, 200)
    assert found.flops == (6 * 1000 + 12 * 10 * 50) * 200
    assert found.mfu == pytest.approx(12_000 * 100 / 1e6) and found.mfu_high == pytest.approx(2 * found.mfu)
    assert str(found).startswith("about 100 tokens/s per GPU, estimate; 50 to 200. MFU about 120 %, estimate; 60 to")
    lora = speed(Shape(10, 1000, 0, False), 50, 200, time, 1e6)
    assert lora.flops == (6 * 10 + 4 * 1000) * 200 and "without attention" in lora.formula
    experts = speed(Shape(1000, 0, 10, True), 50, 200, time, 1e6)
    assert experts.mfu is None and "some of the experts" in str(experts)
    assert "peak of this type is not published" in str(speed(Shape(1000, 0, 10, False), 50, 200, time, None))


def test_fit_has_time_tokens_and_mfu():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    found = simgpu.fit(config, batch=4, length=64, gpu="H100", accumulate=2)
    assert found.time is not None and found.speed is not None and found.speed.tokens == 4 * 64 * 2
    text = str(found)
    assert f"A step takes {found.time}." in text and f"That is {found.speed}." in text
    document = json.loads(json.dumps(found.page.document()))
    assert document["step_time"]["clock"] == found.step and document["speed"]["tokens"] == 512
    assert simgpu.fit(config, batch=4, length=64, gpu="H100", optimizer=None).speed is None
