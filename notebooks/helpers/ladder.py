"""The training step of minGPT's trainer, with the changes of a published ladder of speed as switches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from helpers import models


def training_step(
    compiled: bool = False, half: bool = False, non_blocking: bool = False, ddp: bool = False
) -> Callable[[tuple[Tensor, Tensor]], None]:
    """Returns the training step of a new GPT of 6 layers of width 192 on the GPU, a function of a batch on the host.

    The batch is a pair of token ids, each ``[batch, 128]``. ``compiled`` compiles the model and replays it as a CUDA
    graph, ``half`` runs the forward pass under autocast in float16 with a gradient scaler, ``non_blocking`` copies
    the batch without waiting for it, and ``ddp`` wraps the model in DDP for the current process group.
    """
    model = models.MinGPT(6, heads=6, width=192).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    run = DistributedDataParallel(model) if ddp else model
    run = torch.compile(run, mode="reduce-overhead") if compiled else run

    def step(pair: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad()
        x, y = (one.to("cuda", non_blocking=non_blocking) for one in pair)
        with torch.autocast("cuda", torch.float16, enabled=half):
            _, loss = run(x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step
