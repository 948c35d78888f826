"""The course's Linear models, measured with the ledger, against the figures recorded for them."""

import pytest
import torch

import labkit
from helpers.models import ThreeLinear
from labkit import published
from labkit.ledger import Ledger
from tests.pinned import of_pinned_torch


class HalfLinear(torch.nn.Module):
    """Applies one Linear(1024, 1024) without bias in float16 several times, on ``[batch, 1024]``."""

    def __init__(self, repeats: int):
        super().__init__()
        self.repeats = repeats
        self.linear = torch.nn.Linear(1024, 1024, bias=False, dtype=torch.float16)

    def forward(self, x):
        for _ in range(self.repeats):
            x = self.linear(x)
        return x


MODELS = {
    "three-linear": (ThreeLinear, torch.float32),
    "half-linear": (lambda: HalfLinear(2), torch.float16),
    "half-linear-10": (lambda: HalfLinear(10), torch.float16),
}


@of_pinned_torch
@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
@pytest.mark.parametrize("experiment", MODELS)
def test_training_takes_what_pytorch_2_13_takes(experiment, gpu):
    make, dtype = MODELS[experiment]
    with labkit.simulated_gpu(gpu):
        ledger = Ledger()
        model = make().cuda()
        x = torch.zeros(10_240, 1024, dtype=dtype, device="cuda")
        with ledger("forward"):
            y = model(x)
        loss = y.sum()
        with ledger("backward"):
            loss.backward()
        ours = {
            "forward adds": ledger["forward"].added,
            "after backward": ledger["backward"].after,
            "peak": ledger.peak,
            "reserved": ledger["backward"].reserved,
        }
    for quantity, size in ours.items():
        figure = published.find(experiment, quantity, "host-code", gpu.partition("-")[0])
        assert figure.verdict(size) == "equal", quantity


@of_pinned_torch
def test_the_published_figures_of_the_three_linear_model():
    with labkit.simulated_gpu("A100-80GB"):
        ledger = Ledger()
        with ledger("parameters"):
            model = ThreeLinear().cuda()
        with ledger("input"):
            x = torch.zeros(10_240, 1024, device="cuda")
        with ledger("forward"):
            y = model(x)
        loss = y.sum()
        with ledger("backward"):
            loss.backward()
        optimizer = torch.optim.AdamW(model.parameters())
        with ledger("AdamW"):
            optimizer.step()
        ours = {
            "parameters": ledger["parameters"].added,
            "input": ledger["input"].added,
            "forward adds": ledger["forward"].added,
            "after backward": ledger["backward"].after,
            "AdamW adds": ledger["AdamW"].added,
        }
        del loss, optimizer, model, x, y
        ledger = Ledger()
        model, x = ThreeLinear().cuda(), torch.zeros(10_240, 1024, device="cuda")
        with ledger("inference"), torch.no_grad():
            y = model(x)
        ours["inference, total"] = ledger["inference"].after
    for quantity, size in ours.items():
        figure = published.find("three-linear", quantity, "notes")
        assert figure.verdict(size) == "equal", quantity
    assert y.shape == (10_240, 2048)
