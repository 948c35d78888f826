"""Programs of small tensors that are known: their values are the CPU's, whatever is done to them."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simgpu

MAKE = (
    lambda n, device: torch.arange(n * 4, device=device).view(n, 4),
    lambda n, device: torch.tensor([[3 * i % 5 - 1, i, 2, 0] for i in range(n)]).to(device),
    lambda n, device: torch.ones(n, 4, device=device).tril(),
    lambda n, device: torch.eye(n, 4, device=device, dtype=torch.bool),
    lambda n, device: torch.linspace(-1, 1, n * 4).to(device).reshape(n, 4),
    lambda n, device: torch.full((n, 4), 1 + 2j, device=device) * torch.arange(4, device=device),
)
# Each takes tensors `x` and `y` [n, 4], of any dtype, and gives one of as many rows and four columns, or writes to x.
STEPS = (
    lambda x, y: x + y,
    lambda x, y: x * 2 - y.to(x.dtype).to(torch.int64),
    lambda x, y: torch.where(x == y, x, y),
    lambda x, y: x[:, [3, 0, 1, 2]],
    lambda x, y: x[[-1, *range(x.shape[0] - 1)]],
    lambda x, y: x.flip(0).conj(),
    lambda x, y: x.T.contiguous().T.clone(),
    lambda x, y: x.conj().imag.to(torch.float32) if x.is_complex() else x.ne(0).cumsum(1),
    lambda x, y: x.resolve_conj() @ torch.ones(4, 4, dtype=x.dtype, device=x.device) if x.is_complex() else x.abs(),
    lambda x, y: x.real.sort(1).values,
    lambda x, y: torch.cat([x, y])[x.shape[0] :],
    lambda x, y: y.masked_fill(x.bool(), 3),
    lambda x, y: x[:, 1:].fill_(2),
    lambda x, y: x.t()[0].copy_(y[:, 1].to(x.dtype) if y.is_complex() <= x.is_complex() else y.real[:, 1]),
    lambda x, y: x.diagonal().zero_(),
    lambda x, y: x.__setitem__(y != 0, 1),
    lambda x, y: x.__setitem__(([0, 0], [1, 2]), 1),
    lambda x, y: x.select(1, 2).mul_(1),
    lambda x, y: x.cpu().clone().to(x.device).view_as(x),
    lambda x, y: x.index_select(1, torch.tensor([0, 0, 2, 3]).to(x.device)),
    lambda x, y: x.view(-1).expand(2, -1)[0].reshape(-1, 4).clone(),
)
# What depends on values in its size as well.
ASK = (
    lambda x: x.nonzero(),
    lambda x: x[x != 0],
    lambda x: x.masked_select(x != 0),
    lambda x: x.real.unique(),
    lambda x: x.real.ne(0).sum(1).repeat_interleave(x.real.ne(0).sum(1)),
    lambda x: torch.where(x.real > 0)[1],
    lambda x: x.bool().all(1),
    lambda x: x,
)


def run(device, rows, made, steps, ask):
    """All tensors of a program as lists, and what was asked of the last."""
    tensors = [MAKE[one](rows, device) for one in made]
    for step, first, second in steps:
        x, y = tensors[first % len(tensors)], tensors[second % len(tensors)]
        if step in (12, 13, 14, 15, 16, 17) and (x is y or x._base is not None):
            continue  # PyTorch refuses to write to what is read, and to what is expanded
        result = STEPS[step](x, y)
        if isinstance(result, torch.Tensor) and result.shape == x.shape:
            tensors.append(result)
    return [*(one.tolist() for one in tensors), ASK[ask](tensors[-1]).tolist()]


@pytest.fixture(params=[False, True], ids=["known values", "all values"])
def gpu(request):
    with simgpu.simulated_gpu("A100-80GB", values=request.param) as gpu:
        yield gpu


UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, suppress_health_check=UNCHECKED)
@given(
    rows=st.integers(1, 5),
    made=st.lists(st.integers(0, len(MAKE) - 1), min_size=2, max_size=3),
    steps=st.lists(
        st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12
    ),
    ask=st.integers(0, len(ASK) - 1),
)
def test_a_program_has_the_values_of_the_cpu(gpu, rows, made, steps, ask):
    try:
        wanted = run("cpu", rows, made, steps, ask)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError)):
            run("cuda", rows, made, steps, ask)
    else:
        assert run("cuda", rows, made, steps, ask) == wanted


def test_running_statistics_are_known_until_they_are_written():
    with simgpu.simulated_gpu("A100-80GB"):
        norm = torch.nn.BatchNorm1d(3).cuda()
        norm.eval()(torch.rand(4, 3, device="cuda"))
        assert norm.running_mean.tolist() == [0, 0, 0]
        for cudnn in (False, True):
            with torch.backends.cudnn.flags(enabled=cudnn):
                norm = torch.nn.BatchNorm2d(3).cuda()
                norm(torch.rand(4, 3, 2, 2, device="cuda"))
            with pytest.raises(RuntimeError, match="values=True"):
                norm.running_mean.tolist()


def test_what_is_conjugated_lazily_has_the_values_of_the_conjugate():
    for values in (False, True):
        with simgpu.simulated_gpu("A100-80GB", values=values):
            x = torch.tensor([1 + 2j]).cuda().conj()
            assert x.is_conj() and x.tolist() == [1 - 2j] and x.imag.tolist() == [-2]
            assert (x + 1).tolist() == [2 - 2j] and x.clone().tolist() == [1 - 2j]


def test_what_is_infinite_and_known_is_found():
    with simgpu.simulated_gpu("A100-80GB"):
        x = torch.tensor([1.0, float("inf")]).cuda()
        assert x.isinf().any() and not x.isfinite().all() and x.isinf().tolist() == [False, True]
