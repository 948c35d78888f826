"""Indices that lie on the host, read and written by; alone, with others, in two dtypes. The oracle's events."""

import pytest

from tests.pinned import of_pinned_torch
from tools.oracle.cases import Case, on_simulated

CASES = {
    "each is brought over at its own size": (
        "t = torch.zeros(100, 11, device='cuda'); i = torch.zeros(700, dtype=torch.int64); j = torch.tensor([3, 1])\n"
        "y = t[i[:, None], j]\nt[i[:, None], j] = 1.0\n",
        "S2097152 a4400 a5600 a16 a11200 a11200 f5600 f16 a5600 f11200 f11200 a4 a5600 a16 a11200 a11200 f5600 f16 "
        "f11200 f11200 f4 f4400 f5600",
    ),
    "int32": (
        "t = torch.zeros(100, 11, device='cuda'); k = torch.tensor([3, 0, 2], dtype=torch.int32)\n"
        "y = t[k, k]\nt[k, k] = 1.0\n",
        "S2097152 a4400 a12 a12 a24 f12 a24 f12 a12 f24 f24 a4 a12 a12 a24 f12 a24 f12 f24 f24 f4 f4400 f12",
    ),
    "beside one of the GPU": (
        "t = torch.zeros(100, 11, device='cuda'); k = torch.zeros(300, 1, dtype=torch.int32)\n"
        "g = torch.zeros(5, dtype=torch.int64, device='cuda')\ny = t[k, g]\nt[g, k] = 1.0\n",
        "S2097152 a4400 a40 a1200 a12000 f1200 a12000 a6000 f12000 f12000 a4 a1200 a12000 f1200 a12000 f12000 f12000 "
        "f4 f4400 f40 f6000",
    ),
    "those that are written by go first to last": (
        "t = torch.zeros(2, 11, device='cuda'); v = torch.zeros(3, device='cuda')\n"
        "i, j = torch.tensor([0, 0, 1]), torch.tensor([3, 1, 2], dtype=torch.int32)\nt[i, j] = v\n",
        "S2097152 a88 a12 a24 a12 a24 f12 f24 f24 f88 f12",
    ),
    "in backward, too": (
        "w, v = (torch.zeros(n, device='cuda', requires_grad=True) for n in ((5, 11), 3))\n"
        "i, j = torch.tensor([0, 0, 1]), torch.zeros(300, 1, dtype=torch.int32)\n"
        "w.index_put((i, j), v).sum().backward()\n",
        "S2097152 a220 a12 a220 a24 a1200 a7200 f1200 a7200 f24 f7200 f7200 a4 f220 a4 a12 a220 a24 a1200 a7200 f1200 "
        "a7200 f24 f7200 f7200 f12 a24 a1200 a7200 f1200 a7200 f24 a3600 f7200 f7200 a12 f3600 f4 f4 f220 f220 f12 f12",
    ),
}


@of_pinned_torch
@pytest.mark.parametrize(("code", "events"), CASES.values(), ids=list(CASES))
def test_events_are_the_oracle_s(code, events):
    """Made by tools.oracle.cases.on_oracle: PyTorch's CUDA host code under stub libraries, torch 2.13.0."""
    assert on_simulated([code], "A100-80GB") == [Case("A100-80GB", code, events, None)]
