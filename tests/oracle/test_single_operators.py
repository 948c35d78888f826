"""Operators whose scratch or formula CUDA has for itself, held against the oracle's events on an H100."""

import pytest
import torch

import simgpu
from tools.oracle.cases import Case, here, on_simulated

CASES = [
    (
        "H100",
        "x = torch.ones(50, 70, device='cuda', dtype=torch.int32)\ny = x.trace()\n",
        "S2097152 a14000 a8 a400 f400 f14000 f8",
    ),
    (
        "H100",
        "x = torch.ones(300, 30, device='cuda', requires_grad=True)\nx.trace().backward()\n",
        "S2097152 a36000 a4 a4 a36000 a240 f240 f4 f4 f36000 f36000",
    ),
    (
        "H100",
        "x, z = (torch.ones(2, n, 9, device='cuda', requires_grad=True) for n in (40, 25))\n"
        "torch.cdist(x, z[:1], p=3.0).sum().backward()\n",
        "S2097152 a2880 a1800 a1800 a8000 f1800 a4 a4 a8000 a1800 a2880 a72000 f72000 f1800 f8000 a8000 "
        "a8000 a1800 a1800 a72000 f72000 f1800 f8000 f8000 a900 f1800 f8000 a1800 f900 f4 f4 f2880 f2880 "
        "f1800 f1800",
    ),
    (
        "H100",
        "x, z = (torch.ones(n, 9, device='cuda', requires_grad=True) for n in (40, 25))\n"
        "torch.cdist(x, z, p=0.0).sum().backward()\n",
        "S2097152 a1440 a900 a4000 a4 a4 a4000 a1440 f4000 a4000 a4000 a900 f4000 f4000 f4000 f4 f4 "
        "f1440 f1440 f900 f900",
    ),
    (
        "H100",
        "x = torch.ones(20, 33, device='cuda', requires_grad=True)\ntorch.special.i1e(x).sum().backward()\n",
        "S2097152 a2640 a2640 a4 a4 a2640 a660 f2640 a4 a2640 f4 a2640 a2640 a2640 a2640 a2640 a2640 "
        "f2640 f2640 f2640 f2640 f2640 a4 a2640 a2640 f2640 f4 f2640 f2640 f660 f2640 f4 f4 f2640 f2640",
    ),
    (
        "H100",
        "x = torch.ones(1000, 64, device='cuda', requires_grad=True)\n"
        "m, v = torch.zeros(2, 64, device='cuda')\n"
        "w, b = torch.ones(2, 64, device='cuda', requires_grad=True)\n"
        "y = torch.ops.aten._batch_norm_with_update(x, w, b, m, v, 0.1, 1e-5)\n"
        "y[0].sum().backward()\n",
        "S2097152 a256000 a512 a512 a256000 a256 a256 a4 a4 a256 a256 a256 a256 a256000 f256 f256 a512 "
        "f256 f256 f4 f4 f512 f256 f256 f512 f512 f256000 f256000 f256000",
    ),
    (
        "H100",
        "x = torch.ones(1000, 64, device='cuda')\n"
        "y = torch.ops.aten._native_batch_norm_legit(x, None, None, True, 0.1, 1e-5)\n",
        "S2097152 a256000 a256000 a256 a256 f256000 f256 f256 f256000",
    ),
    (
        "H100",
        "x = torch.zeros(2, 80, 16, device='cuda').transpose(1, 2)[:, :, 16:].view(2, 16, 8, 8)\n"
        "y = F.interpolate(x, size=(16, 16), mode='bilinear')\ny = F.interpolate(x, size=(8, 8), mode='bilinear')\n",
        "S2097152 a10240 a32768 a8192 f8192 a8192 f32768 f10240 f8192",
    ),
    (
        "H100",
        "x = torch.zeros(2, 80, 15, device='cuda').transpose(1, 2)[:, :, 16:].view(2, 15, 8, 8)\n"
        "y = F.interpolate(x, size=(16, 16), mode='bilinear')\n",
        "S2097152 a9600 a30720 f9600 f30720",
    ),
    (
        "H100",
        "x = torch.zeros(300, 64, device='cuda').t()\nF.rrelu_(x, training=True)\n"
        "y = F.rrelu(x, training=True), F.rrelu(x, training=False), F.rrelu(x[:, ::2], training=True)\n"
        "assert {one.stride(1) for one in y} == {1}\n",
        "S2097152 a76800 a76800 a76800 a76800 f76800 f76800 f76800 a76800 a76800 a76800 f76800 f76800 a76800 a76800 "
        "f76800 a38400 a38400 a38400 f38400 f38400 f76800 f38400 f76800 f76800",
    ),
    (
        "H100",
        "x = torch.zeros(300, 64, device='cuda', requires_grad=True)\nF.rrelu(x.t(), training=True).sum().backward()\n",
        "S2097152 a76800 a76800 a76800 a76800 f76800 a4 f76800 a4 a76800 f76800 a76800 f76800 f4 f4 f76800 f76800",
    ),
    (  # the oracle was given the values that its host reads: compare-code
        "H100",
        "n = torch.tensor([[1, 9], [0, 9], [2, 9]], device='cuda')\n"
        "y = torch.zeros(3, 5, device='cuda').repeat_interleave(n[:, 0], 0)\n",
        "S2097152 a48 a60 a24 a24 a24 a1279 f1279 f24 a3 a1 f1 f3 a24 f24 f24 a60 f24 f60 f48 f60",
    ),
]


@pytest.mark.parametrize(("gpu", "code", "events"), CASES)
def test_events_are_the_oracle_s(gpu, code, events):
    assert on_simulated([code], gpu) == here("single_operators", [Case(gpu, code, events, None)])


def test_repeats_that_are_negative():
    with simgpu.simulated_gpu("H100"), pytest.raises(RuntimeError, match="repeats can not be negative"):
        torch.repeat_interleave(torch.tensor([2, -1], device="cuda"))
