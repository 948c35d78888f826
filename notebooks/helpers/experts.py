"""Mixtures of experts in plain PyTorch, as chapter 21b measures them: on one GPU, and as one rank of eight.

The router's choices are values, which simulated tensors don't have, so `counts` says how many copies of tokens each
expert gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from helpers import models
from labkit.gpu import current, one_rank
from labkit.ledger import Ledger
from labkit.timing import stopwatch
from labkit.units import MiB

TOKENS, WIDTH, INNER = 8192, 1024, 3584
EXPERTS, CHOICES = 8, 2
HALF = torch.bfloat16


class Weights(nn.Module):
    """The router and the weights of `count` experts, each tensor with one more dimension than those of an MLP."""

    counts: list[int] = [TOKENS * CHOICES // EXPERTS] * EXPERTS
    run: Callable[[Tensor], Tensor]

    def __init__(self, count: int = EXPERTS, choices: int = CHOICES, width: int = WIDTH, inner: int = INNER):
        super().__init__()
        self.choices, self.router = choices, nn.Linear(width, count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(count, width, 2 * inner))
        self.down = nn.Parameter(torch.empty(count, inner, width))


class Layer(models.LlamaLayer):
    """A Llama's layer whose MLP is what `mlp()` returns, called with tokens of shape [tokens, width]."""

    def __init__(self, mlp: Callable[[], nn.Module]):
        super().__init__(WIDTH, 8, 2, 8, TOKENS)
        self.gate = self.up = self.down = None
        self.mlp = mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.o(self.attend(self.norm_1(x)))
        return x + self.mlp(self.norm_2(x).flatten(0, 1)).view_as(x)


def loop(self, rows: Tensor) -> Tensor:
    """Runs one expert after another."""
    parts = []
    for part, gate_up, down in zip(rows.split(self.counts), self.gate_up, self.down, strict=True):
        gate, up = (part @ gate_up).chunk(2, -1)
        parts.append((F.silu(gate) * up) @ down)
    return torch.cat(parts)


def boxes(factor: float) -> Callable[[Weights, Tensor], Tensor]:
    """Returns a function that runs all experts by batched matmuls of `factor` times the mean number of rows.

    Experts with fewer rows are padded. Rows that exceed this capacity are dropped: their result is zero.
    """

    def run(self: Weights, rows: Tensor) -> Tensor:
        size = math.ceil(factor * len(rows) / len(self.down))
        fit = [min(count, size) for count in self.counts]
        parts = [F.pad(p[:size], (0, 0, 0, size - n)) for p, n in zip(rows.split(self.counts), fit, strict=True)]
        gate, up = (torch.stack(parts) @ self.gate_up).chunk(2, -1)
        y = (F.silu(gate) * up) @ self.down
        gaps = [count - n for count, n in zip(self.counts, fit, strict=True)]
        return torch.cat([F.pad(one[:n], (0, 0, 0, gap)) for one, n, gap in zip(y, fit, gaps, strict=True)])

    return run


def measure(layer: Callable[[], nn.Module], depth: int = 4) -> dict[str, float]:
    """Trains `depth` layers for two steps with fused AdamW in bfloat16.

    Returns the number of parameters, the bytes held after an update, the bytes that forward saves per layer, the peak
    of the second backward, and its milliseconds.
    """
    ledger = Ledger()
    with torch.device("cuda"):
        net = nn.Sequential(*(layer() for _ in range(depth))).to(HALF)
        x = torch.zeros(1, TOKENS, WIDTH, dtype=HALF)
    adam = torch.optim.AdamW(net.parameters(), fused=True)
    ms, held = 0.0, 0
    for i in (1, 2):
        with stopwatch() as timing:
            passes(ledger, i, lambda: net(x))
        adam.step()
        ms, held = timing.ms, torch.cuda.memory_allocated()
        adam.zero_grad()
    saved, peak = ledger["forward 2"].added / depth, ledger["backward 2"].peak
    return {
        "parameters": sum(p.numel() for p in net.parameters()), "held": held, "saved": saved, "peak": peak, "ms": ms,
    }  # fmt: skip


def passes(ledger: Ledger, i: int, forward: Callable[[], Tensor]) -> None:
    """Runs forward and backward, as the stages "forward i" and "backward i"."""
    with ledger(f"forward {i}"):
        loss = forward().mean()
    with ledger(f"backward {i}"):
        loss.backward()


def table(rows: dict[str, dict[str, float]], heading: str) -> pd.DataFrame:
    """Returns a table of what `measure` returned, in MiB."""
    names = {"parameters": "parameters (M)", "held": "held (MiB)", "saved": "saved per layer (MiB)"}
    names |= {"peak": "peak (MiB)", "ms": "ms (simulated)" if current().simulated else "ms"}
    units = {"parameters": 1e6, "ms": 1}
    made = {name: {names[key]: size / units.get(key, MiB) for key, size in row.items()} for name, row in rows.items()}
    return pd.DataFrame(made).T.round().astype(int).rename_axis(heading)


def own_experts(self: Weights, rows: Tensor) -> Tensor:
    """Runs a rank's experts by grouped matmuls; they share the rows evenly."""
    count = len(self.down)
    ends = torch.arange(1, count + 1, device=rows.device, dtype=torch.int32) * (len(rows) // count)
    gate, up = F.grouped_mm(rows, self.gate_up, offs=ends).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, self.down, offs=ends)


def as_rank(kind: Callable[..., nn.Module], load: float, ranks: int = 8) -> SimpleNamespace:
    """Trains the experts of one layer as rank 0 of `ranks`, which receives `load` times its even share of the copies.

    `kind(count)` builds a rank's experts, called with tokens, and with the numbers of copies sent to each rank and
    received from each. Returns what forward saved, the peak of backward, and what the rank sent, in bytes.
    """
    with one_rank(0, of=ranks) as me:
        dist.init_process_group("nccl")
        ledger = Ledger()
        with torch.device("cuda"):
            experts, x = kind(EXPERTS // ranks).to(HALF), torch.zeros(TOKENS, WIDTH, dtype=HALF, requires_grad=True)
            experts.router = nn.Linear(WIDTH, EXPERTS, bias=False, dtype=HALF)
        adam = torch.optim.AdamW(experts.parameters(), fused=True)
        share = TOKENS * CHOICES // ranks
        for i in (1, 2):
            me.traffic.clear()
            passes(ledger, i, lambda: experts(x, [share] * ranks, [int(load * share)] * ranks))
            adam.step()
            adam.zero_grad()
        saved, peak = ledger["forward 2"].added, ledger["backward 2"].peak
        return SimpleNamespace(saved=saved, peak=peak, sent=me.traffic.sent)


def granite_update(ranks: int) -> int:
    """Returns the peak of AdamW's update in one of `ranks` ranks that train Granite 3.0 3B-A800M in bfloat16.

    Its 40 experts per layer are divided over the ranks, and so is everything else, by FSDP. AdamW is PyTorch's default.
    The shape is that of the model's config.json: 32 layers, width 1536, experts of 512, 24 heads (8 of keys and
    values) of 64, and 49,155 tokens in the vocabulary.
    """
    ledger = Ledger()
    attention, router = 2 * 1536 * 1536 + 2 * 1536 * 512, 1536 * 40
    with torch.device("cuda"):
        experts = [Weights(40 // ranks, 8, 1536, 512).to(HALF) for _ in range(32)]
        rest = nn.Parameter(torch.empty((32 * (attention + router) + 49_155 * 1536) // ranks, dtype=HALF))
    own = [p for one in experts for p in (one.gate_up, one.down)] + [rest]
    adam = torch.optim.AdamW(own)
    for stage in ("first", "update"):
        for one in own:
            one.grad = torch.zeros_like(one)
        with ledger(stage):
            adam.step()
    return ledger["update"].peak
