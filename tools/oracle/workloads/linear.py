"""The two models of linear layers whose memory the course's sources print."""

from functools import partial

import torch
from torch import nn


def three_linear(stage):
    """1024 → 1024 → 1024 → 2048 in fp32 on 10240 rows: two training steps with AdamW, then inference."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2048)).to("cuda")
    stage("model")
    inputs = torch.randn(10240, 1024, device="cuda")
    stage("input")
    outputs = model(inputs)
    stage("forward")
    loss = outputs.sum()
    stage("loss")
    loss.backward()
    stage("backward")
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    stage("step")
    optimizer.zero_grad()
    loss = outputs = None
    outputs = model(inputs)
    loss = outputs.sum()
    stage("second forward")
    loss.backward()
    stage("second backward")
    optimizer.step()
    optimizer.zero_grad()
    loss = outputs = None
    stage("second step")
    with torch.no_grad():
        outputs = model(inputs)
    stage("inference")


def half_linear(stage, repetitions):
    """One Linear(1024, 1024, bias=False) in fp16, applied `repetitions` times to 10240 rows."""
    layer = nn.Linear(1024, 1024, bias=False, dtype=torch.float16).cuda()
    stage("model")
    inputs = torch.zeros((10240, 1024), dtype=torch.float16).cuda()
    stage("input")
    outputs = inputs
    for _ in range(repetitions):
        outputs = layer(outputs)
    stage("forward")
    loss = torch.sum(outputs)
    stage("loss")
    loss.backward()
    stage("backward")
    with torch.no_grad():
        outputs = layer(inputs)
    stage("inference")


def shapes(stage, dtype):
    """Products that cuBLAS reads as they lie, and products whose operands are copied for it."""
    x = torch.randn(64, 96, dtype=dtype, device="cuda", requires_grad=True)
    w = torch.randn(96, 48, dtype=dtype, device="cuda", requires_grad=True)
    batch = torch.randn(8, 64, 96, dtype=dtype, device="cuda", requires_grad=True)
    vector = torch.randn(96, dtype=dtype, device="cuda", requires_grad=True)
    stage("operands")
    for product in (
        lambda: x @ w,
        lambda: x.t().contiguous().t() @ w,
        lambda: x[:, ::2] @ w[::2],
        lambda: x[:, :1].expand(64, 96) @ w,
        lambda: batch @ w,
        lambda: batch.transpose(0, 1) @ w,
        lambda: batch @ batch.transpose(1, 2),
        lambda: torch.bmm(batch[:, ::2], batch.transpose(1, 2)),
        lambda: x @ vector,
        lambda: vector @ vector,
        lambda: torch.addmm(vector[:48], x, w),
        lambda: torch.addmm(x[:, :48], x, w, beta=2),
        lambda: torch.baddbmm(batch[:, :, :64], batch, batch.transpose(1, 2)),
        lambda: torch.einsum("bij,jk->bik", batch, w),
        lambda: nn.functional.linear(batch, w.t(), vector[:48]),
        lambda: nn.functional.linear(batch.transpose(0, 1), w.t(), vector[:48]),
        lambda: nn.functional.linear(x, vector[None]),
    ):
        product().sum().backward()
    stage("products")


def into_float32(stage):
    """Products of 16-bit matrices that are added to a float32 matrix in place, as fused losses sum gradients."""
    for rows, inner, columns in ((64, 96, 48), (1000, 256, 704), (511, 33, 130), (16, 4096, 8)):
        for dtype in (torch.bfloat16, torch.float16):
            left = torch.randn(rows, inner, dtype=dtype, device="cuda")
            right = torch.randn(inner, columns, dtype=dtype, device="cuda")
            total = torch.zeros(2 * rows, columns, device="cuda")
            torch.addmm(total[:rows], left, right, out_dtype=torch.float32, out=total[:rows])
            torch.addmm(total[rows:], left.t().contiguous().t(), right, out_dtype=torch.float32, out=total[rows:])
            wide = torch.randn(rows, 2 * inner, dtype=dtype, device="cuda")[:, :inner]
            torch.addmm(total[:rows], wide, right, out_dtype=torch.float32, out=total[:rows])
        stage(f"{rows} x {inner} x {columns}")


WORKLOADS = {
    "into_float32": into_float32,
    "three_linear": three_linear,
    "half_linear_2": partial(half_linear, repetitions=2),
    "half_linear_10": partial(half_linear, repetitions=10),
    "products_fp32": partial(shapes, dtype=torch.float32),
    "products_bf16": partial(shapes, dtype=torch.bfloat16),
}
