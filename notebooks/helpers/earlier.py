"""Runs the code of earlier chapters again: bert-base as in chapter 05, and an optimizer's step as in chapter 12."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, optim

from helpers import models
from labkit import Ledger


def bert_base(batch: int = 32, length: int = 512) -> dict[str, int]:
    """Returns the bytes of the six quantities that the course notes print for bert-base, on the current GPU.

    They are those of a first training step in eval mode with eager attention, whose loss is the sum of the last hidden
    state, and what a first forward pass adds without gradients. Allocates on an empty GPU, so no other tensors of the
    caller should be there.
    """
    ledger = Ledger()
    with ledger("parameters"), torch.device("cuda"):
        model = models.bert("base", "eager")
    with ledger("input"):
        tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
    optimizer = optim.AdamW(model.parameters())
    with ledger("forward"):
        outputs = model(tokens)
    loss = outputs.last_hidden_state.sum()
    with ledger("backward"):
        loss.backward()
    with ledger("optimizer"):
        optimizer.step()
    found = {"parameters": ledger["parameters"].added, "input": ledger["input"].added}
    found |= {"forward adds": ledger["forward"].added, "after backward": ledger["backward"].after}
    found["AdamW adds"] = ledger["optimizer"].added
    model = tokens = optimizer = outputs = loss = None
    return found | {"inference adds": _inference(batch, length)}


def _inference(batch: int, length: int) -> int:
    ledger = Ledger()
    with torch.device("cuda"):
        model, tokens = models.bert("base", "eager"), torch.zeros(batch, length, dtype=torch.long)
    with torch.no_grad(), ledger("inference"):
        outputs = model(tokens)
    return ledger["inference"].added if outputs is not None else 0  # the outputs are alive until here


def optimizer_step(make: Callable[[list[Tensor]], optim.Optimizer], width: int, layers: int = 8) -> tuple[float, float]:
    """Returns the states of an optimizer after two steps, and the temporaries of the second, in bytes per parameter.

    `make(parameters)` returns the optimizer of `layers` float32 matrices of `width` × `width`.
    """
    ledger = Ledger()
    parameters = [torch.zeros(width, width, device="cuda", requires_grad=True) for _ in range(layers)]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    before, optimizer = torch.cuda.memory_allocated(), make(parameters)
    for name in ("step 1", "step 2"):
        with ledger(name):
            optimizer.step()
    count = layers * width * width
    second = ledger["step 2"]
    return (second.after - before) / count, (second.peak - second.after) / count
