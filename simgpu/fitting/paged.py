"""The paged KV cache of a server: bytes of a block, blocks of a request, and how many requests a budget holds.

The rules are those of vLLM: the layers' specs and the blocks of a request in vllm/v1/kv_cache_interface.py, groups of
layers and the number of blocks in vllm/v1/core/kv_cache_utils.py, and the budget in vllm/v1/worker/gpu_worker.py
(`determine_available_memory`).
"""

from dataclasses import dataclass

import torch

from simgpu.fitting.dtypes import DTYPES, KV_DTYPES

FULL, SLIDING = "full_attention", "sliding_attention"
BLOCK_SIZE = 16
"""Tokens of a block, as in vLLM."""

UTILIZATION = 0.9
"""Share of the GPU that the server may use: the default of older versions of vLLM. Newer ones have 0.92."""

CHUNK = 2048
"""Tokens of a chunk of prefill. vLLM's default for max_num_batched_tokens depends on version, GPU and use."""

MANY_LAYERS = 1.5
"""If the more frequent kind has less than this factor times the layers of the other, each kind is a single group."""

_OTHER_SHAPES = ("num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads", "attention_chunk_size")


@dataclass(frozen=True)
class KVLayout:
    """Describes what the attention layers of a model store for each token.

    `elements`: of one layer and token, keys and values together. `full` and `sliding`: layers that keep all tokens, and
    layers that keep a window of `window` tokens. `latent`: whether keys and values are one compressed vector (MLA).
    """

    elements: int
    full: int
    sliding: int = 0
    window: int | None = None
    latent: bool = False

    @property
    def group(self) -> int:
        """Returns the layers that share one table of blocks."""
        few, many = sorted((self.full, self.sliding))
        return many if few == 0 or many < MANY_LAYERS * few else few

    @property
    def groups(self) -> int:
        """Returns the number of tables of blocks, each for `group` layers."""
        return -(-self.full // self.group) + -(-self.sliding // self.group)

    def block_bytes(self, block_size: int, itemsize: int) -> int:
        """Returns the bytes of a block of one group: `block_size` tokens in each of its layers."""
        return self.group * block_size * self.elements * itemsize

    def token_bytes(self, itemsize: int) -> int:
        """Returns the bytes of a token in all layers, as long as it is inside the window."""
        return (self.full + self.sliding) * self.elements * itemsize

    def request_blocks(self, length: int, block_size: int, chunk: int) -> int:
        """Returns the most blocks of a request of `length` tokens that is prefilled in chunks.

        A sliding layer keeps the window and the chunk that is computed, and one block more because the window may begin
        inside a block.
        """
        blocks = -(-self.full // self.group) * -(-length // block_size)
        if self.sliding:
            kept = min((self.window or length) - 1 + chunk, length)
            blocks += -(-self.sliding // self.group) * (-(-kept // block_size) + 1)
        return blocks


def kv_layout(config, gpus: int = 1) -> KVLayout:
    """Returns the layout on one of `gpus` for a configuration of transformers with attention in all of its layers.

    GPUs share the key and value heads, each has at least one, and the vectors of latent attention are whole on each.
    Raises ValueError for a model whose cache has parts that are not modelled: states of recurrent layers, heads of
    different sizes, or layers that share their keys and values.
    """
    other = [name for name in _OTHER_SHAPES if getattr(config, name, None)]
    if other:
        raise ValueError(f"the KV blocks of a model with {other[0]}={getattr(config, other[0])} are not modelled")
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    try:
        kinds = getattr(config, "layer_types", None) or [SLIDING if window else FULL] * config.num_hidden_layers
        latent = bool(getattr(config, "kv_lora_rank", None))
        elements = _latent(config) if latent else _heads(config, gpus)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"the configuration names no attention heads and layers, so it has no KV cache: {error}"
        ) from None
    unknown = set(kinds) - {FULL, SLIDING}
    if unknown:
        raise ValueError(f"fit knows the KV blocks of full and sliding attention, and the model has {min(unknown)} too")
    sliding = kinds.count(SLIDING) if window else 0
    return KVLayout(elements, len(kinds) - sliding, sliding, window if sliding else None, latent)


def key_heads(config, gpus: int = 1) -> int:
    """Returns the key heads of a layer on each GPU. Raises ValueError if they are not the same number on each."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if heads % gpus and gpus % heads:
        raise ValueError(
            f"{gpus} GPUs can neither share {heads} key heads equally nor hold equally many copies of them"
        )
    return max(1, heads // gpus)


def _heads(config, gpus: int) -> int:
    return (
        2
        * key_heads(config, gpus)
        * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    )


def _latent(config) -> int:
    return config.kv_lora_rank + config.qk_rope_head_dim


def kv_itemsize(kv_dtype: str | None, own: torch.dtype) -> int:
    """Returns the bytes of an element of the cache: those of `kv_dtype`, or of the model's own dtype."""
    return (KV_DTYPES | DTYPES)[kv_dtype].itemsize if kv_dtype else own.itemsize


@dataclass(frozen=True)
class Capacity:
    """Computes how many blocks and requests fit, from bytes: `budget` − `context` − `weights` − `activations`.

    `activations`: the most that a chunk of prefill and the sampler allocate above the weights. `length`: tokens of a
    request, prompt and answer. `asked`: the requests that were asked about. With several `gpus` that share the model
    by tensor parallelism, the bytes are those of each, and all hold the same tokens.
    """

    layout: KVLayout
    budget: int
    context: int
    weights: int
    activations: int
    asked: int
    length: int
    block_size: int
    chunk: int
    itemsize: int
    gpus: int = 1

    @property
    def available(self) -> int:
        """Returns the bytes for the KV cache, 0 if nothing is left."""
        return max(0, self.budget - self.context - self.weights - self.activations)

    @property
    def block_bytes(self) -> int:
        """Returns the bytes of a block."""
        return self.layout.block_bytes(self.block_size, self.itemsize)

    @property
    def blocks(self) -> int:
        """Returns the number of blocks that fit."""
        return self.available // self.block_bytes

    @property
    def tokens(self) -> int:
        """Returns the tokens that the blocks hold, as vLLM logs it: a token has a place in every group of layers."""
        return self.blocks // self.layout.groups * self.block_size

    @property
    def request_blocks(self) -> int:
        """Returns the blocks of one request."""
        return self.layout.request_blocks(self.length, self.block_size, self.chunk)

    @property
    def concurrency(self) -> float:
        """Returns how many requests fit, as vLLM logs it, with a fraction."""
        return self.blocks / self.request_blocks

    @property
    def requests(self) -> int:
        """Returns how many whole requests fit at once."""
        return self.blocks // self.request_blocks

    def document(self) -> dict:
        """Returns the figures for JSON; sizes in bytes."""
        names = ("budget", "context", "weights", "activations", "available", "block_bytes", "blocks", "tokens")
        more = ("request_blocks", "concurrency", "requests", "asked", "length", "block_size", "chunk", "gpus")
        token = self.layout.token_bytes(self.itemsize)
        return {name: getattr(self, name) for name in (*names, *more)} | {"token_bytes": token}
