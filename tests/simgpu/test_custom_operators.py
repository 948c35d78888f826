"""Operators that a program makes with torch.library.custom_op: their own Python runs, as it does on CUDA."""

import warnings

import pytest
import torch

import simgpu

SEEN = []


@torch.library.custom_op("custom_test::spread", mutates_args=())
def spread(x: torch.Tensor, wide: int) -> torch.Tensor:
    SEEN.append((str(x.device), x.is_cuda))
    apart = torch.empty(wide, x.shape[-1], device=x.device, dtype=torch.float32)  # only inside
    return x.float().sum(0) + apart.sum(0)


@spread.register_fake
def _(x, wide):
    return torch.empty(x.shape[-1])


@spread.register_autograd
def _(ctx, grad):
    return grad.expand(3, -1), None


@torch.library.custom_op("custom_test::through_numpy", mutates_args=())
def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy() * 2).to(x.device) if x.nonzero().shape[0] else x.clone()


@through_numpy.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("custom_test::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero().float()


@torch.library.custom_op("custom_test::filled", mutates_args=("x",))
def filled(x: torch.Tensor) -> None:
    x.add_(torch.ones_like(x))


def told(action):
    with warnings.catch_warnings(record=True) as caught, simgpu.simulated_gpu("H100"):
        warnings.simplefilter("always")
        result = action()
    return [str(one.message) for one in caught if issubclass(one.category, simgpu.LeftOutWarning)], result


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_made_inside_takes_memory(grad):
    """Figures of PyTorch's CUDA host code under stub libraries."""

    def action():
        x = torch.zeros(3, 1000, dtype=torch.bfloat16).cuda().requires_grad_(grad)
        torch.cuda.reset_peak_memory_stats()
        y = torch.ops.custom_test.spread(x, 2000) if grad else spread(x, 2000)
        assert y.requires_grad is grad and (y.device.type, y.dtype) == ("cuda", torch.float32)
        found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        if grad:
            y.sum().backward()
            assert x.grad.shape == x.shape
        return found

    said, (now, peak) = told(action)
    assert (said, now, peak) == ([], 10240, 24792064)
    assert SEEN[-1] == ("cuda:0", True)


def test_what_asks_for_values_runs_as_its_shapes_and_says_so():
    said, result = told(lambda: tuple(through_numpy(torch.rand(8, 8, device="cuda")).shape))
    assert result == (8, 8)
    assert len(said) == 1 and "custom_test::through_numpy leaves out" in said[0]


def test_without_shapes_the_reason_is_raised():
    with simgpu.simulated_gpu("H100"), pytest.raises(simgpu.errors.NoValueError, match="depends on the values"):
        without_fake(torch.rand(8, 8, device="cuda"))


def test_what_is_written_in_place_stays_where_it_is():
    def action():
        x = torch.zeros(1000, device="cuda")
        filled(x)
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()

    assert told(action) == ([], (4096, 8192))
