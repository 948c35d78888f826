"""Two training steps of a workload on any device: the same lines for every tool that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch

from benchmarks.league.workloads import Workload

STEPS = 2


@contextmanager
def settings() -> Iterator[None]:
    """No cuDNN, whose workspaces only a GPU can tell, and no question whether sequences are packed.

    transformers' decoders ask for values there, and the oracle's are zeros: they would make a mask that no GPU makes.
    """
    from transformers import masking_utils

    with ExitStack() as stack:
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", lambda position_ids: None))
        yield


def built(workload: Workload, device: str) -> torch.nn.Module:
    """The model in train mode on the device, with checkpointing if the workload says so."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(weights(workload))
    try:
        with torch.device(device):
            model = workload.make().train()
    finally:
        torch.set_default_dtype(before)
    if workload.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def weights(workload: Workload) -> torch.dtype:
    """The dtype of its parameters."""
    return torch.bfloat16 if workload.dtype == "bf16" else torch.float32


def inputs(workload: Workload, device: str) -> dict[str, torch.Tensor]:
    """One micro-batch on the device, images and vectors in the dtype of the weights."""
    with torch.device(device):
        given = workload.inputs()
    return {name: one.to(weights(workload)) if one.is_floating_point() else one for name, one in given.items()}


def optimizer_of(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Its optimizer, foreach as on a GPU unless the workload says for-loop."""
    kind = torch.optim.SGD if workload.optimizer == "sgd" else torch.optim.AdamW
    return kind(model.parameters(), lr=1e-3, foreach=workload.optimizer != "adamw-loop")


def loss_of(output) -> torch.Tensor:
    """The model's own loss, or else the sum of its first result."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    return (output if isinstance(output, torch.Tensor) else output[0]).sum()


def steps(workload: Workload, model, optimizer, given, device: str, after_backward=lambda: None) -> None:
    """Train: `accumulate` micro-batches a step. `after_backward` is called after each of them."""
    cast = torch.autocast(device, torch.bfloat16) if workload.dtype == "autocast" else nullcontext()
    for _ in range(STEPS):
        for _ in range(workload.accumulate):
            with cast:
                loss = loss_of(model(*given.values()) if "input" in given else model(**given))
            (loss / workload.accumulate if workload.accumulate > 1 else loss).backward()
            del loss
            after_backward()
        optimizer.step()
        optimizer.zero_grad()


def run(workload: Workload, device: str) -> None:
    """Build and train it."""
    with settings():
        model = built(workload, device)
        steps(workload, model, optimizer_of(workload, model), inputs(workload, device), device)
