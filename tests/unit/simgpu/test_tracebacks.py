"""What an error keeps allocated where it is caught. The bytes are the oracle's."""

import traceback

import pytest
import torch
from torch import nn

import labkit
from simgpu.tracebacks import OURS, as_on_gpu

MIB = 2**20


def allow(nbytes: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((nbytes + 1) / total)


def names(trace) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(trace)]


def test_an_error_in_backward_keeps_the_gradient_it_began_with():
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.zeros(10 * MIB, device="cuda", requires_grad=True)
        y = (x * 1).sum()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        allow(60 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            y.backward()
        assert torch.cuda.memory_allocated() - before == 512
        del caught
        assert torch.cuda.memory_allocated() == before


def test_pytorch_s_frames_stay_and_the_simulated_gpu_s_go():
    with labkit.simulated_gpu("A100-80GB"):
        layer = nn.MultiheadAttention(256, 8, device="cuda")
        x = torch.zeros(1024, 4, 256, device="cuda")
        allow(60 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            layer(x, x, x)
        kept = as_on_gpu(caught.value.__traceback__)
        assert "multi_head_attention_forward" in names(kept)
        assert "handle_torch_function" not in names(kept)
        assert not any(frame.f_code.co_filename.startswith(OURS) for frame, _ in traceback.walk_tb(kept))


def test_nothing_is_left_of_no_traceback():
    assert as_on_gpu(None) is None


def zeros(*shape, **options):
    return torch.zeros(*shape, device="cuda", **options)


def doubled(*shape):
    return zeros(*shape) * 2


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + zeros(7)


FAIL = {
    "sizes": lambda: doubled(1000) + zeros(999),
    "sizes in place": lambda: doubled(1000).copy_(doubled(999)),
    "of lists": lambda: torch._foreach_add_([doubled(1000)], [doubled(999)]),
    "product": lambda: doubled(100, 30) @ doubled(31, 20),
    "dtypes": lambda: doubled(100, 30) @ doubled(30, 20).half(),
    "linear": lambda: nn.functional.linear(doubled(100, 30), doubled(20, 31)),
    "cat": lambda: torch.cat([doubled(100, 30), doubled(100, 30, 3)]),
    "stack": lambda: torch.stack([doubled(100, 30), doubled(100, 31)]),
    "where": lambda: torch.where(zeros(20) > 0, doubled(21), doubled(20)),
    "a tensor of the host": lambda: doubled(1000) + torch.zeros(1000),
    "indices": lambda: doubled(1000)[:, 3],
    "view": lambda: doubled(1000).view(7, -1),
    "expand": lambda: doubled(20).expand(3, 7),
    "numpy": lambda: doubled(1000).numpy(),
    "a leaf in place": lambda: zeros(1000, requires_grad=True).addcdiv_(doubled(1000), zeros(1000)),
    "convolution": lambda: nn.functional.conv2d(doubled(2, 3, 10, 10), doubled(4, 4, 3, 3)),
    "products of a batch": lambda: torch.bmm(doubled(2, 3, 4), doubled(3, 4, 5)),
    "embedding": lambda: nn.functional.embedding(doubled(10), zeros(10, 20)),
    "item": lambda: doubled(1000).item(),
    "an item set": lambda: zeros(20).__setitem__(slice(0, 3), doubled(4)),
    "no gradient": lambda: doubled(20).sum().backward(),
    "out": lambda: torch.add(doubled(1000), zeros(1000), out=zeros(1000, dtype=torch.int64)),
}

HELD = {"embedding": 1536, "no gradient": 512}  # bytes, by the frames of PyTorch's Python


@pytest.mark.parametrize("side", [False, True], ids=["", "on another stream"])
@pytest.mark.parametrize("name", FAIL)
def test_an_error_that_is_kept_keeps_no_tensor_of_the_call_that_failed(name, side):
    """C++ holds nothing after an error. The bytes are the oracle's."""
    with labkit.simulated_gpu("A100-80GB"):
        stream = torch.cuda.Stream() if side else None
        with torch.cuda.stream(stream), pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
            FAIL[name]()
        assert torch.cuda.memory_allocated() == HELD.get(name, 0)
        assert caught.value.__traceback__ is not None


def test_what_the_program_s_own_frames_hold_stays():
    """In the traceback of a formula that the program wrote is its gradient; x is the test's. The oracle's bytes."""
    with labkit.simulated_gpu("A100-80GB"):
        x = zeros(1000, requires_grad=True)
        with pytest.raises(RuntimeError) as caught:
            Failing.apply(x).exp().sum().backward()
        assert torch.cuda.memory_allocated() == 9216
        assert caught.value.__traceback__ is not None
