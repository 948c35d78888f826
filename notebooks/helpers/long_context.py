"""Trains a small Llama on long sequences, alone or as one rank of a group that divides each sequence (chapter 21b)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers import models
from labkit.gpu import one_rank
from labkit.ledger import Ledger
from labkit.timing import stopwatch
from labkit.units import MiB

WIDTH, INNER, LAYERS, VOCABULARY = 1024, 3584, 4, 32_000
CHUNKS = 32  # of the loss
HALF = torch.bfloat16


def llama(length: int) -> tuple[models.Llama, Tensor]:
    """Returns a Llama in bfloat16 whose layers share one tensor of positions, and a sequence of `length` tokens."""
    with torch.device("cuda"):
        net = models.Llama(LAYERS, WIDTH, 8, 2, INNER, VOCABULARY, length).to(HALF)
        for layer in net.layers:
            layer.rotary = net.layers[0].rotary
        return net, torch.zeros(1, length, dtype=torch.long)


def loss_of(net: Any, ids: Tensor, checkpointed: bool, chunked: bool) -> Tensor:
    """Returns the loss, with a checkpoint per layer, and with a cross-entropy that computes one chunk at a time."""
    x = net.tokens(ids)
    for layer in net.layers:
        x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
    if not chunked:
        return F.cross_entropy(net.head(net.norm(x)).flatten(0, 1).float(), ids.flatten())

    def part(some: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(net.head(net.norm(some)).float(), wanted, reduction="sum")

    hidden, targets = x.flatten(0, 1), ids.flatten()
    pairs = zip(hidden.chunk(CHUNKS), targets.chunk(CHUNKS), strict=True)
    return torch.stack([checkpoint(part, *pair, use_reentrant=False) for pair in pairs]).sum() / len(targets)


def peak(length: int, checkpointed: bool, chunked: bool) -> int:
    """Returns the peak of the second forward and backward pass in bytes."""
    ledger, (net, ids) = Ledger(), llama(length)
    for i in (1, 2):
        with ledger(f"step {i}"):
            loss_of(net, ids, checkpointed, chunked).backward()
    return ledger["step 2"].peak


def more(attention: Callable[..., Tensor], of: int = 8, length: int = 65_536, heads: int = 8) -> tuple[int, int]:
    """Returns what attention without gradients adds at its peak as rank 0, and what it sends, in bytes."""
    with one_rank(0, of=of) as me, torch.no_grad():
        dist.init_process_group("nccl")
        ledger = Ledger()
        qkv = [torch.zeros(1, heads, length // of, 128, dtype=HALF, device="cuda") for _ in "qkv"]
        with ledger("attention"):
            attention(*qkv)
        return ledger["attention"].peak - ledger["attention"].before, me.traffic.sent


def as_rank(length: int, of: int, way: str = "alltoall") -> SimpleNamespace:
    """Trains the Llama with checkpoints, chunked loss and AdamW as rank 0 of `of` that divide a sequence.

    `way` is "alltoall" for the ring, or "allgather". Returns, for the second step, the bytes held before it, its peak,
    and what the rank sent.
    """
    with one_rank(0, of=of) as me:
        dist.init_process_group("nccl")
        set_rotate_method(way)
        ledger, (net, ids) = Ledger(), llama(length)
        adam = torch.optim.AdamW(net.parameters(), fused=True)
        rotary: Any = net.layers[0].rotary
        cut = partial(context_parallel, init_device_mesh("cuda", (of,)), no_restore_buffers={ids, rotary})
        with cut(buffers=[ids, rotary], buffer_seq_dims=[1, 1]) if of > 1 else nullcontext():
            for stage in ("first", "second"):
                me.traffic.clear()
                with ledger(stage):
                    loss_of(net, ids, True, True).backward()
                adam.step()
                adam.zero_grad()
        return SimpleNamespace(held=ledger["second"].before, peak=ledger["second"].peak, sent=me.traffic.sent)


def bytes_per_second(link: str) -> float:
    """Returns the rate at which rank 0 of 8 sends in an all-to-all of 256 MiB."""
    with one_rank(0, of=8, link=link) as me:
        dist.init_process_group("nccl")
        x = torch.zeros(256 * MiB, dtype=torch.uint8, device="cuda")
        with stopwatch() as timing:
            dist.all_to_all_single(torch.empty_like(x), x)
        return 1e3 * me.traffic.sent / timing.ms


def gathered(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Returns `attention` to the keys and values of all ranks, which are collected first."""
    whole = [one.new_empty(dist.get_world_size(), *one.shape) for one in (k, v)]
    for one, part in zip(whole, (k, v), strict=True):
        dist.all_gather_into_tensor(one.view(-1), part.view(-1))
    return attention(q, *(one.movedim(0, 2).flatten(2, 3) for one in whole))
