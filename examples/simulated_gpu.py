"""The simulated GPU in ten lines: what one training step takes, on a GPU that is not here."""

import torch
from torch import nn

import simgpu

with simgpu.simulated_gpu("H100") as gpu:
    model = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(512, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{gpu.name}: {torch.cuda.max_memory_allocated():,} B allocated at the peak")
    print(f"{torch.cuda.memory_reserved():,} B reserved")
    print(f"left out: {gpu.unmodeled}" if gpu.unmodeled else "to the byte")
