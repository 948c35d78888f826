"""What a training loop asks about NaN and infinity has the answer of a sound run, and nothing else has one."""

import warnings

import pytest
import torch

import labkit
from labkit.simulator import finite
from labkit.simulator.errors import NoValueError


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(finite, "_warned", True)
    with labkit.simulated_gpu("A100-80GB") as found:
        yield found


@pytest.fixture
def x(gpu):
    return torch.ones(4, device="cuda")


def test_nothing_is_nan_or_infinite(x):
    loss = x.sum()
    assert not torch.isnan(loss) and not loss.isinf() and torch.isfinite(loss)
    assert not torch.isnan(x).any() and not (x.isnan() | x.isinf()).any().item()
    assert torch.isfinite(x).all() and torch.logical_not(x.isnan()).all()
    assert not torch.logical_and(x.isfinite(), x.isposinf()).any()


def test_with_one_warning_that_says_so(x, monkeypatch):
    monkeypatch.setattr(finite, "_warned", False)
    with pytest.warns(UserWarning, match="sound run"):
        assert not x.sum().isnan()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not x.sum().isnan()


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: bool(torch.isnan(x) | (x > 0)),
        lambda x: bool(torch.isnan(x).logical_or_(x > 0)),
        lambda x: bool(torch.isnan(x) != torch.isinf(x)),
        lambda x: torch.isnan(x).sum().item(),
    ],
)
def test_anything_else_has_no_answer(gpu, ask):
    with pytest.raises(NoValueError):
        ask(torch.ones((), device="cuda"))


def test_tensors_of_the_host_have_their_own_values(gpu):
    assert torch.isnan(torch.tensor(float("nan"))) and not torch.isnan(torch.tensor(1.0))


def test_clipping_may_ask(x):
    x.requires_grad_()
    x.sum().backward()
    torch.nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("foreach", [True, False])
def test_a_scaler_steps(x, foreach):
    x.requires_grad_()
    optimizer = torch.optim.AdamW([x], foreach=foreach)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.state[x]["exp_avg"].is_cuda


def test_isinf_compares_absolute_values(gpu):
    """The oracle, torch 2.13.0: torch.isinf of 1000 fp32 takes 4,000 B and 1,000 B, isnan 1,000 B alone."""
    x = torch.zeros(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.isnan(x)
    assert torch.cuda.max_memory_allocated() - before == 1024
    torch.isinf(x)
    assert torch.cuda.max_memory_allocated() - before == 4096 + 1024
