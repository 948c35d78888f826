"""Workloads that do not fit 80 GB: the operator that fails, its message, and what is left to work with."""

from contextlib import suppress

import torch
from torch import nn

GiB = 2**30


def oom_forward(stage):
    """Too large a batch for three linear layers."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2048)).to("cuda")
    stage("model")
    inputs = torch.randn(5_000_000, 1024, device="cuda")
    stage("input")
    outputs = model(inputs)
    outputs.sum().backward()


def oom_backward(stage):
    """A batch whose forward fits and whose backward does not."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2048)).to("cuda")
    inputs = torch.randn(3_300_000, 1024, device="cuda")
    stage("input")
    outputs = model(inputs)
    stage("forward")
    outputs.sum().backward()


def oom_then_on(stage):
    """After the error a smaller request is served, from the memory that the failing one gave back."""
    kept = torch.empty(40 * GiB, dtype=torch.uint8, device="cuda")
    cached = [torch.empty(3 * GiB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    del cached
    stage("filled")
    with suppress(torch.cuda.OutOfMemoryError):
        torch.empty(50 * GiB, dtype=torch.uint8, device="cuda")
    stage("failed")
    smaller = torch.empty(30 * GiB, dtype=torch.uint8, device="cuda")
    stage("went on")
    del kept, smaller


def oom_fraction(stage):
    """A process that may have a tenth of the device."""
    torch.cuda.set_per_process_memory_fraction(0.1)
    held = []
    while True:
        held.append(torch.empty(GiB + 5_000_000, dtype=torch.uint8, device="cuda"))
        stage(f"{len(held)} held")


def oom_fragmented(stage):
    """Enough memory in all, but in pieces."""
    pieces = [torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(3600)]
    stage("filled")
    del pieces[::2]
    stage("every second one freed")
    torch.empty(30 * GiB, dtype=torch.uint8, device="cuda")
    stage("cached blocks given back")
    del pieces[1::2]
    torch.empty(70 * GiB, dtype=torch.uint8, device="cuda")


WORKLOADS = {f.__name__: f for f in (oom_forward, oom_backward, oom_then_on, oom_fraction, oom_fragmented)}
