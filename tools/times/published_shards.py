"""Builds published training runs that FSDP shards over several GPUs, and the step of their first rank.

The GPT of llm-foundry has the shape of its configurations: learned positions, biases, tied embedding, FlashAttention,
AdamW. Parameters are gathered in bfloat16; gradients are reduced in float32 with autocast, and in bfloat16 without it.
torchtitan's Llama 3 8B saves every other matmul and attention for backward, as its selective checkpointing does.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from tools.times.published import Row

VOCABULARY = 50368
SHAPES = {  # width, layers, heads: scripts/train/yamls/pretrain of llm-foundry
    "MPT 125m": (768, 12, 12),
    "MPT 350m": (1024, 24, 16),
    "MPT 760m": (1536, 24, 12),
    "MPT 1b": (2048, 24, 16),
    "MPT 3b": (2560, 32, 20),
    "MPT 7b": (4096, 32, 32),
    "MPT 13b": (5120, 40, 40),
    "MPT 30b": (7168, 48, 56),
    "MPT 70b": (8192, 80, 64),
}
LAYERS = (6, 10)
Step = Callable[[int], object]


class Block(nn.Module):
    """A block of GPT with FlashAttention and the exact GELU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """llm-foundry's model without a head of its own: the embedding is the output layer, too."""

    def __init__(self, width: int, layers: int, heads: int, length: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def gpt(row: Row, layers: int) -> Step:
    """Returns a step of llm-foundry's GPT on the first rank, which runs a given number of micro-batches."""
    width, _, heads = SHAPES[row.model]
    with torch.device("meta"):
        model = GPT(width, layers, heads, row.tokens)
    reduced = torch.float32 if row.precision == "amp bfloat16" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    shard = partial(fully_shard, mp_policy=policy, reshard_after_forward="FULL_SHARD" in (row.parallelism or ""))
    for number, layer in enumerate(model.layers):
        model.layers[number] = shard(checkpoint_wrapper(layer) if row.checkpointing == "full" else layer)
    return trained(shard(model).to_empty(device="cuda"), row)


def titan(row: Row, layers: int) -> Step:
    """Returns a step of torchtitan's Llama 3 8B on the first rank, with every block compiled where the row says so."""
    with torch.device("meta"):
        model = importlib.import_module("helpers.models").Llama(layers)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number, layer in enumerate(model.layers):
        layer = checkpoint_wrapper(layer, context_fn=every_other_matmul, preserve_rng_state=False)
        layer = torch.compile(layer) if row.mode == "compiled" else layer
        model.layers[number] = fully_shard(layer, mp_policy=policy, reshard_after_forward=number < layers - 1)
    return trained(fully_shard(model, mp_policy=policy).to_empty(device="cuda"), row)


def every_other_matmul():
    """Returns the contexts of selective checkpointing: attention and every other matmul are saved."""
    counts: Counter = Counter()
    kinds = ("flash", "efficient", "cudnn")
    kept = {getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default for kind in kinds}

    def policy(context, operator, *args, **kwargs):
        counts[operator, context.is_recompute] += 1
        odd = counts[operator, context.is_recompute] % 2 == 1
        keep = operator in kept or (operator is torch.ops.aten.mm.default and odd)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def trained(model: nn.Module, row: Row) -> Step:
    """Returns a step of training with clipping and AdamW, which runs a given number of micro-batches."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(row.batch, row.tokens, dtype=torch.long, device="cuda")

    def step(micro_batches: int):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            logits = model(tokens).flatten(0, 1)
            functional.cross_entropy(
                logits.float() if row.library == "torchtitan" else logits, tokens.flatten()
            ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step


def builder(row: Row) -> Callable[[Row, int], Step] | None:
    """Returns what makes the step of a sharded row with a given number of layers, None if the row cannot be built."""
    if row.gpus == 1 or row.simulated_gpu is None:
        return None
    if row.source == "llm-foundry" and row.precision != "float8":
        return gpt
    alone = (row.parallelism or "").startswith("FSDP") and "," not in (row.parallelism or "")
    return titan if row.library == "torchtitan" and alone and row.precision == "bfloat16" else None


def values(row: Row, timed: Callable) -> tuple[float, ...]:
    """Returns what `timed` returns for the first rank's second step, on the simulated GPU and rank in use.

    Two depths and two numbers of micro-batches are run, because a step is linear in both. `timed` runs a function and
    returns its times.
    """
    layers = SHAPES[row.model][1] if row.model in SHAPES else 32
    shallow, deep = LAYERS
    few, many = (_of_layers(row, timed, depth) for depth in LAYERS)
    return _beyond(few, many, (layers - shallow) / (deep - shallow))


def _beyond(first: tuple[float, ...], second: tuple[float, ...], steps: float) -> tuple[float, ...]:
    """Returns what lies `steps` times as far from the first times as the second ones do."""
    return tuple(one + steps * (other - one) for one, other in zip(first, second, strict=True))


def _of_layers(row: Row, timed: Callable, layers: int) -> tuple[float, ...]:
    make = builder(row)
    if make is None:
        raise ValueError(f"no model of this row can be built: {row.name}")
    step = make(row, layers)
    step(1)
    micro_batches = row.accumulation or 1
    one = timed(partial(step, 1))
    return one if micro_batches == 1 else _beyond(one, timed(partial(step, 2)), micro_batches - 1)
