"""The course's two models of linear layers."""

from functools import partial

import torch

from simgpu.recording.workloads import models

BATCH = 10_240


def three_linear(stage):
    """Runs two training steps with AdamW and then inference, in float32."""
    model = models.three_linear().to("cuda")
    stage("model")
    inputs = torch.randn(BATCH, 1024, device="cuda")
    stage("input")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(stage=lambda name: None):
        outputs = model(inputs)
        stage("forward")
        loss = outputs.sum()
        stage("loss")
        loss.backward()
        stage("backward")
        optimizer.step()
        optimizer.zero_grad()
        stage("step")

    step(stage)
    stage("first step")
    step(stage)
    stage("second step")
    with torch.no_grad():
        model(inputs)
    stage("inference")
    return step


def half_linear(stage, repeats):
    """Runs forward and backward, and then inference, in float16."""
    model = models.half_linear(repeats).cuda()
    stage("model")
    inputs = torch.zeros(BATCH, 1024, dtype=torch.float16).cuda()
    stage("input")

    def step(stage=lambda name: None):
        outputs = model(inputs)
        stage("forward")
        loss = outputs.sum()
        stage("loss")
        loss.backward()
        stage("backward")
        model.zero_grad()

    step(stage)
    stage("zero_grad")
    with torch.no_grad():
        model(inputs)
    stage("inference")
    return step


def matmul(stage, size, dtype):
    """Multiplies two square matrices."""
    a, b = (torch.randn(size, size, dtype=dtype, device="cuda") for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device="cuda")
    stage("operands")
    torch.mm(a, b, out=out)
    stage("product")
    return lambda: torch.mm(a, b, out=out)


def copy(stage, nbytes):
    """Copies a tensor within the device."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    stage("tensors")
    target.copy_(source)
    stage("copied")
    return lambda: target.copy_(source)


WORKLOADS = {
    "three-linear": three_linear,
    "half-linear-2": partial(half_linear, repeats=2),
    "half-linear-10": partial(half_linear, repeats=10),
    "matmul-8192-fp32": partial(matmul, size=8192, dtype=torch.float32),
    "matmul-8192-bf16": partial(matmul, size=8192, dtype=torch.bfloat16),
    "matmul-1024-bf16": partial(matmul, size=1024, dtype=torch.bfloat16),
    "copy-1GiB": partial(copy, nbytes=2**30),
}
