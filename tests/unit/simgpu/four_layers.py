"""A small model, and two steps of a script with it: what `simgpu.fit` is held against."""

import torch
from torch import nn

WEIGHTS = 4 * (512 * 512 + 512) * 4


def layers():
    """Four layers of 1 MiB of weights, each of which keeps its input and what the linear layer gives."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4)))


def steps(model, optimizer) -> tuple[int, int]:
    """Two steps with batches of 256: the peaks of allocated and of reserved memory."""
    for _ in range(2):
        x = torch.zeros(256, 512).cuda()
        loss = model(x).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
