"""Serves requests with a paged KV cache: blocks of one pool, a block table per request, and shared prefixes.

The model is transformers' own, and its attention copies a layer's keys and values out of the pool before it reads
them. (The kernels of vLLM and SGLang read through the block table without a copy.)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from labkit import plots, simulated_gpu

BLOCK = 16  # tokens, as in vLLM


def token_bytes(config: PreTrainedConfig, element: float = 2) -> int:
    """Returns the bytes of keys and values per token, all layers, with elements of ``element`` bytes."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return round(2 * config.num_hidden_layers * heads * width * element)


def card_sizes(card: str) -> tuple[int, int]:
    """Returns the memory of a simulated card, and what of it the CUDA context needs, both in bytes."""
    with simulated_gpu(card):
        torch.empty(1, device="cuda")
        free, total = torch.cuda.mem_get_info()
        return total, total - free - torch.cuda.memory_reserved()


def profile_run(model: PreTrainedModel, tokens: int) -> int:
    """Returns the peak in bytes above what is allocated, in a prefill of one prompt without a cache."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long, device="cuda"), use_cache=False, logits_to_keep=1)
    return torch.cuda.max_memory_allocated() - before


def layer_peak(config: PreTrainedConfig, card: str, tokens: int) -> int:
    """Returns the peak in bytes of a `profile_run` in bfloat16 on a simulated card, for one layer of a model.

    One layer holds what vLLM holds in each of its layers. transformers also holds the embeddings from the second on.
    """
    one = copy.deepcopy(config)
    one.num_hidden_layers = 1
    with simulated_gpu(card, 80 * 2**30), torch.device("cuda"):
        return profile_run(AutoModelForCausalLM.from_config(one, dtype=torch.bfloat16).eval(), tokens)


def passes(answers: Sequence[int], seats: int, continuous: bool) -> int:
    """Returns the forward passes until all requests have their tokens, with at most ``seats`` requests at once.

    ``answers`` has the tokens of each. A continuous batch gives a free seat to the next request at once, and any other
    waits until all requests of the batch are finished. Raises ``ValueError`` without seats, or for an empty answer.
    """
    if seats < 1 or min(answers, default=1) < 1:
        raise ValueError(f"wanted 1 seat or more and answers of 1 token or more; given: {seats} seats, {answers}")
    waiting, busy, count = list(answers), [], 0
    while waiting or busy:
        if continuous or not busy:
            busy += [waiting.pop(0) for _ in range(min(seats - len(busy), len(waiting)))]
        busy, count = [left - 1 for left in busy if left > 1], count + 1
    return count


def plot_rates(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Returns a drawing of tokens per second over the requests at once, ``{name: {requests: rate}}``."""
    said = [f"{name} end at {max(curve)} requests" for name, curve in curves.items()]
    title = "A longer context costs twice: fewer requests fit, and a step reads more"
    alt = "; ".join(said) + "."
    figure, axes = plots.new(title, alt, xlabel="requests at once", ylabel="estimate (tokens per s)")
    for (name, curve), colour in zip(curves.items(), plots.palette, strict=False):
        axes.plot(list(curve), list(curve.values()), "o-", color=colour, ms=4, lw=1.2, label=name)
        axes.plot(max(curve), curve[max(curve)], "|", color=colour, ms=16, mew=2)
    axes.set(xscale="log", ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    plots.legend(axes)
    return figure


class OutOfBlocks(Exception):
    """Raised when the pool has too few free blocks for a request; the request then has none."""


@dataclass
class Request:
    """A prompt of token numbers, its block table, and how many of its tokens are in the cache."""

    prompt: list[int]
    table: list[int] = field(default_factory=list)
    cached: int = 0


class PagedLayer(CacheLayerMixin):
    """A layer's part of the pool, ``[2, places, heads, width]``, as transformers' attention uses it."""

    def __init__(self, pool: Tensor, write: Tensor, read: Tensor, start: int):
        """``write`` has the places of the new tokens, and ``read`` those of all tokens by request."""
        super().__init__()
        self.pool, self.write, self.read, self.start = pool, write, read, start

    def lazy_initialization(self, key_states, value_states) -> None:
        pass

    def update(self, key_states, value_states, *_, **__):
        """Writes the new keys and values into the pool, and returns copies of all that the requests have."""
        for side, new in enumerate((key_states, value_states)):
            self.pool[side, self.write] = new.transpose(1, 2).flatten(0, 1)
        keys, values = (self.pool[side][self.read].transpose(1, 2) for side in (0, 1))
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.read.shape[1], 0

    def get_seq_length(self) -> int:
        return self.start

    def get_max_length(self) -> int:
        return -1


class Engine:
    """A model with a pool of blocks, which is allocated once; requests take blocks from it and give them back."""

    def __init__(self, model: PreTrainedModel, blocks: int, sharing: bool = False):
        """``sharing``: requests whose prompts begin with the same full blocks share them."""
        config, weight = model.config, next(model.parameters())
        shape = config.num_hidden_layers, 2, blocks * BLOCK, config.num_key_value_heads, config.head_dim
        self.model, self.sharing = model, sharing
        self.pool = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.free = list(range(blocks))
        self.references = [0] * blocks
        self.known: dict[tuple[int, ...], int] = {}
        self.held: dict[
            int, tuple[int, ...]
        ] = {}  # the reverse of known, which has the block for a full block's prefix

    def admit(self, prompt: list[int], new_tokens: int = 0) -> Request:
        """Returns a request with blocks for its prompt and ``new_tokens`` more. Raises ``OutOfBlocks`` if none is free.

        With sharing, its table begins with the blocks of other requests that begin with the same tokens. These requests
        must go through ``prefill`` before this one.
        """
        request = Request(prompt)
        whole = len(prompt) // BLOCK if self.sharing else 0
        ends = [(number + 1) * BLOCK for number in range(whole)]
        for end in ends:
            if (block := self.known.get(tuple(prompt[:end]))) is None or end == len(prompt):
                break  # the last token of a prompt is always computed, because its logits are needed
            self.references[block] += 1
            request.table.append(block)
        request.cached = len(request.table) * BLOCK
        try:
            self.grow(request, len(prompt) + new_tokens)
        except OutOfBlocks:
            self.release(request)
            raise
        for end, block in zip(ends, request.table, strict=False):
            if (held := tuple(prompt[:end])) not in self.known:
                self.known[held], self.held[block] = block, held
        return request

    def grow(self, request: Request, tokens: int) -> None:
        """Adds blocks to a request's table until ``tokens`` have places. Raises ``OutOfBlocks`` if none is free."""
        while len(request.table) * BLOCK < tokens:
            if not self.free:
                raise OutOfBlocks(f"{tokens} tokens need {-(-tokens // BLOCK)} blocks, and none is free")
            block = self.free.pop()
            self.references[block] = 1
            request.table.append(block)

    def release(self, request: Request) -> None:
        """Gives a request's blocks back; those that another request shares stay in use."""
        for block in request.table:
            self.references[block] -= 1
            if not self.references[block]:
                self.put_back(block)
        request.table, request.cached = [], 0

    def put_back(self, block: int) -> None:
        """Adds a block to the free ones, so that no later request shares what it holds."""
        self.free.append(block)
        self.known.pop(self.held.pop(block, ()), None)

    @torch.no_grad()
    def prefill(self, request: Request, chunk: int | None = None, last_only: bool = True) -> Tensor:
        """Computes the prompt's tokens that are not in the cache yet, ``chunk`` at a time, and returns the last logits.

        Without ``last_only`` it computes the logits of all positions.
        """
        logits = torch.empty(0)
        while request.cached < len(request.prompt):
            end = min(len(request.prompt), request.cached + (chunk or len(request.prompt)))
            logits = self._forward([request], [request.prompt[request.cached : end]], int(last_only))
        return logits[:, -1]

    @torch.no_grad()
    def decode(self, requests: list[Request], tokens: list[int]) -> Tensor:
        """Computes one new token of each request, all in one forward pass, and returns their logits."""
        for request in requests:
            self.grow(request, request.cached + 1)
        return self._forward(requests, [[token] for token in tokens], 1)[:, -1]

    def _forward(self, requests: list[Request], tokens: list[list[int]], keep: int) -> Tensor:
        new, device = len(tokens[0]), self.pool.device
        ends = [request.cached + new for request in requests]
        places = [
            [request.table[t // BLOCK] * BLOCK + t % BLOCK for t in range(end)]
            for request, end in zip(requests, ends, strict=True)
        ]
        write = torch.tensor([place for row in places for place in row[-new:]], device=device)
        read = torch.tensor([row + [0] * (max(ends) - len(row)) for row in places], device=device)
        positions = torch.tensor([range(end - new, end) for end in ends], device=device)
        seen = torch.arange(max(ends), device=device) <= positions[:, None, :, None]  # [requests, 1, new, all]
        layers: list[Any] = [PagedLayer(layer, write, read, max(ends) - new) for layer in self.pool]
        output = self.model(
            torch.tensor(tokens, device=device),
            position_ids=positions,
            attention_mask=None if new == max(ends) else seen,
            past_key_values=Cache(layers=layers),
            use_cache=True,
            logits_to_keep=keep,
        )
        for request, end in zip(requests, ends, strict=True):
            request.cached = end
        return output.logits
