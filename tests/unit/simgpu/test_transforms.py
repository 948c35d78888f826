"""Gradients under torch.func's transforms, with the oracle's figures."""

import pytest

from tools.oracle import cases

# Made by tools.oracle.cases.on_oracle on an H100: PyTorch's CUDA host code under stub libraries, torch 2.13.0.
TRANSFORMED = (
    (
        "q = torch.ones(2, 4, 20, 16, device='cuda')\n"
        "g = torch.func.grad(lambda q: F.scaled_dot_product_attention(q, q, q).sum())(q)\n",
        "S2097152 a10240 a10240 a1024 a4 a4 a10240 a10240 a10240 a10240 a10240 a640 a640 f640 f1024"
        "0 a131200 f640 f131200 f10240 f1024 f10240 a10240 f10240 a10240 f10240 f10240 f10240 f4 f4"
        " f10240 f10240",
    ),
    (
        "x = torch.ones(64, 20, device='cuda')\n"
        "y = torch.func.vmap(lambda x: F.dropout(x, 0.3), randomness='different')(x)\n",
        "S2097152 a5120 a1280 a5120 f1280 f5120 f5120",
    ),
    (
        "x = torch.ones(64, 20, device='cuda')\n"
        "g = torch.func.grad(lambda x: x.clamp(x * 2, x * 3).sum() + x.max())(x)\n",
        "S2097152 a5120 a5120 a5120 a5120 a4 f5120 a4 a4 f4 a4 a1280 a1 a1280 a1280 a8 a10240 f1024"
        "0 a4 a5120 f4 f8 f1280 f1280 f1 f1280 f4 a4 a1280 a1280 a1280 a5120 f1280 f1280 f1280 a128"
        "0 a1280 a1280 a5120 f1280 f1280 f1280 f4 a4 a1280 a1280 a1280 a5120 f1280 f1280 f1280 f4 f"
        "5120 f5120 a5120 f5120 f5120 a5120 f5120 a5120 f5120 f5120 a5120 f5120 a5120 f5120 f5120 f"
        "4 f4 f5120 f5120",
    ),
    (
        "x = torch.ones(50, 30, device='cuda')\n"
        "t = torch.func.jvp(lambda x: torch.func.vjp(torch.sin, x)[1](x)[0], (x,), (x,))[1]\n",
        "S2097152 a6000 a6000 a6000 a6000 f6000 a6000 a6000 a6000 a6000 f6000 f6000 a6000 a6000 a60"
        "00 a6000 f6000 f6000 f6000 f6000 f6000 f6000 f6000 f6000 f6000",
    ),
)


@pytest.mark.parametrize(
    ("code", "events"), TRANSFORMED, ids=["attention", "dropout", "clamp and max", "twice"][: len(TRANSFORMED)]
)
def test_transforms_take_what_cuda_takes(code, events):
    (found,) = cases.on_simulated([code], "H100")
    assert (found.events, found.error) == (events, None)
