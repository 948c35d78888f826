"""Sums and products of ZeroTensors. Figures: PyTorch's CUDA host code under stub libraries, torch 2.13.0.

python -m tools.oracle compare-code "m = ...; m + torch._efficientzerotensor((50,), device='cuda')" --events
"""

import pytest
import torch
from torch import nn

from simgpu import simulated_gpu

KEPT = 1536  # bytes of 6 x 50 float32, in whole 512s
ONE = 512  # of the element that a ZeroTensor is made of for the meta kernel, freed before the result is there


def zeros(*shape, device="cuda"):
    return torch._efficientzerotensor(shape, device=device)


@pytest.mark.parametrize(
    ("make", "kept", "peak"),
    [
        (lambda m: m + zeros(50), KEPT, KEPT),
        (lambda m: zeros(50) + m, KEPT, KEPT),
        (lambda m: m - zeros(6, 50), KEPT, KEPT),
        (lambda m: zeros(50) - m, KEPT, 2 * KEPT),
        (lambda m: zeros(6, 1) + zeros(50), 0, ONE),
        (lambda m: m * zeros(50), 0, ONE),
        (lambda m: 3 * zeros(4), 0, ONE),
        (lambda m: zeros(50) / m, 0, ONE),
        (lambda m: m / zeros(6, 50), KEPT, KEPT),
    ],
)
def test_memory_is_the_oracle_s(make, kept, peak):
    with simulated_gpu("H100"):
        m = torch.randn(6, 50, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        made = make(m)
        assert torch.cuda.max_memory_allocated() - before == peak
        assert torch.cuda.memory_allocated() - before == kept
        assert made._is_zerotensor() == (kept == 0)
        assert made.is_cuda


def test_a_layer_without_a_tangent_of_its_own():
    with simulated_gpu("H100"):
        layer, x = nn.Linear(50, 31).cuda(), torch.randn(7, 50, device="cuda")
        torch.func.jvp(layer, (x,), (torch.ones_like(x),))  # cuBLAS takes its workspaces
        before, made = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]
        result, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
        assert torch.cuda.memory_stats()["allocation.all.allocated"] - made == 9
        assert (
            torch.cuda.memory_allocated() - before == 2 * 1024 + 1536
        )  # result, tangent, and x's tangent in the graph
        assert result.shape == tangent.shape == (7, 31)


def test_other_devices_have_pytorch_s_own_kernels():
    x = torch.arange(3.0)
    with simulated_gpu("H100"):
        assert torch.equal(zeros(3, device="cpu") + x, x)
        assert torch.equal(torch.sub(zeros(3, device="cpu"), x, alpha=2), -2 * x)
        assert (x * zeros(3, device="cpu"))._is_zerotensor()
    assert torch.equal(zeros(3, device="cpu") + x, x)


def test_with_values():
    with simulated_gpu("H100", values=True):
        x = torch.arange(3.0).cuda()
        assert (zeros(3) - x).tolist() == [0, -1, -2]
        assert (x / zeros(3)).tolist()[1:] == [float("inf")] * 2
