"""What earlier chapters ran, run again: bert-base's six sizes, and what an optimizer stores and allocates."""

from functools import partial

import pytest
from torch import optim

import labkit
from helpers import earlier


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def test_bert_base_has_the_six_quantities_and_they_follow_the_batch():
    small, large = earlier.bert_base(1, 64), earlier.bert_base(2, 64)
    names = ["parameters", "input", "forward adds", "after backward", "AdamW adds", "inference adds"]
    assert list(small) == list(large) == names
    assert small["parameters"] == large["parameters"] > 4 * 109_000_000
    assert (small["input"], large["input"]) == (64 * 8, 2 * 64 * 8)
    assert large["forward adds"] > small["forward adds"] > small["inference adds"] > 4 * 64 * 768


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (optim.SGD, (0, 0)),
        (partial(optim.SGD, momentum=0.9), (4, 0)),
        (optim.AdamW, (8, 4)),
        (partial(optim.AdamW, foreach=False), (8, 1.5)),
    ],
)
def test_an_optimizers_states_and_temporaries_in_bytes_per_parameter(make, wanted):
    assert earlier.optimizer_step(make, width=1024, layers=8) == pytest.approx(wanted, abs=0.001)
