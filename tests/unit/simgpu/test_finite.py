"""What a training loop asks about NaN and infinity has the answer of a sound run, and nothing else has one."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import labkit
from simgpu.errors import NoValueError


@pytest.fixture
def gpu():
    with labkit.simulated_gpu("A100-80GB") as found:
        yield found


@pytest.fixture
def x(gpu):
    return torch.rand(4, device="cuda")


def test_nothing_is_nan_or_infinite(x):
    loss = x.sum()
    assert not torch.isnan(loss) and not loss.isinf() and torch.isfinite(loss)
    assert not torch.isnan(x).any() and not (x.isnan() | x.isinf()).any().item()
    assert torch.isfinite(x).all() and torch.logical_not(x.isnan()).all()
    assert not torch.logical_and(x.isfinite(), x.isposinf()).any()


def test_in_every_way_to_ask(x):
    unknown = x > 0
    assert not torch.any(input=x.isnan()) and not torch.any(x.isnan(), dim=0) and not x.isnan().any(dim=0)
    assert torch.logical_not(input=x.isnan()).all()
    assert not torch.logical_or(input=x.isnan(), other=x.isinf()).any()
    with pytest.raises(NoValueError):
        bool(torch.any(input=unknown))
    with pytest.raises(NoValueError):
        bool(torch.logical_or(input=x.isnan(), other=unknown).any())


def test_what_pytorch_checks_is_valid(x):
    x.requires_grad_()
    F.gaussian_nll_loss(x, torch.ones_like(x), torch.rand(4, device="cuda")).backward()
    assert x.grad.is_cuda
    normal = torch.distributions.Normal(x, torch.rand(4, device="cuda"), validate_args=True)
    assert normal.log_prob(torch.randn(4, device="cuda")).is_cuda
    with pytest.raises(NoValueError):  # and nothing that a script asks itself
        bool(torch.any(torch.rand(4, device="cuda") < 0))


def test_what_is_known_to_be_invalid_is_not(gpu):
    with pytest.raises(ValueError, match="Expected parameter probs"):
        torch.distributions.Bernoulli(torch.full((3,), 2).cuda(), validate_args=True)
    with pytest.raises(ValueError, match="negative"):
        F.gaussian_nll_loss(*torch.ones(2, 3, device="cuda"), torch.full((3,), -1).cuda())


def test_with_one_warning_that_says_so(x):
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
        ask(torch.rand((), device="cuda"))


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


def test_a_scaler_counts_its_sound_steps(x):
    x.requires_grad_()
    optimizer = torch.optim.SGD([x])
    scaler = torch.amp.GradScaler("cuda", growth_interval=3)
    counts = []
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(x.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        counts.append(scaler.state_dict()["_growth_tracker"])
    assert counts == [1, 2, 0, 1]


def test_a_scaler_of_several_optimizers_counts_too(x):
    x.requires_grad_()
    optimizers = [torch.optim.SGD([x]), torch.optim.SGD([x])]
    scaler = torch.amp.GradScaler("cuda")
    for step in (1, 2):
        scaler.scale(x.sum()).backward()
        scaler.step(optimizers[0])
        scaler.unscale_(optimizers[1])
        scaler.step(optimizers[1])
        scaler.update()
        assert scaler.state_dict()["_growth_tracker"] == step


def test_isinf_compares_absolute_values(gpu):
    """The oracle, torch 2.13.0: torch.isinf of 1000 fp32 takes 4,000 B and 1,000 B, isnan 1,000 B alone."""
    x = torch.zeros(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.isnan(x)
    assert torch.cuda.max_memory_allocated() - before == 1024
    torch.isinf(x)
    assert torch.cuda.max_memory_allocated() - before == 4096 + 1024


def test_what_is_compared_by_assert_close_is_close_and_a_model_can_be_traced(x):
    with pytest.warns(UserWarning, match="as in a sound run"):
        torch.testing.assert_close(x * 2, x + x)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).cuda()
    traced = torch.jit.trace(model, torch.randn(2, 3, device="cuda"))
    assert traced(torch.randn(5, 3, device="cuda")).shape == (5, 4)
    with pytest.raises(AssertionError, match="shape"):
        torch.testing.assert_close(x, x[:1])
