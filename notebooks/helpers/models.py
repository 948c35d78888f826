"""Builds the course's models from configs with random weights, without downloading anything."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class ThreeLinear(nn.Module):
    """Applies Linear 1024 → 1024 → 1024 → 2048 with biases and no activation in between: 4,198,400 parameters.

    Input ``[batch, 1024]``, output ``[batch, 2048]``. The recorded figures are for batch 10,240 in float32.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.net_a = nn.Linear(1024, 1024, dtype=dtype)
        self.net_b = nn.Linear(1024, 1024, dtype=dtype)
        self.net_c = nn.Linear(1024, 2048, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.net_c(self.net_b(self.net_a(x)))


class PatchMLP(nn.Module):
    """Splits images into patches of 16 × 16, applies an MLP to each patch, and computes ten logits from their mean.

    Input ``[batch, 3, height, width]`` of any dtype, with height and width multiples of 16. It is converted to the
    weights' dtype on its own device.
    """

    def __init__(self, width: int):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(768, width), nn.Linear(width, 4 * width), nn.GELU())
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(x.to(self.head.weight.dtype), 16).flatten(2).transpose(1, 2)
        return self.head(self.mlp(patches).mean(1))


class LlamaLayer(nn.Module):
    """A modern decoder layer in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    Input and output ``[batch, length, hidden]``; causal, without biases or dropout. ``shared_heads`` heads of keys and
    values serve ``heads`` heads of queries, and ``inner`` is the width of SwiGLU. Raises ``ValueError`` unless
    ``heads`` divides the width and ``shared_heads`` divides ``heads``.
    """

    rotary: Tensor  # [2, longest, width of a head]: cosine and sine of each position's angles

    def __init__(self, hidden: int, heads: int, shared_heads: int, inner: int, longest: int = 8192):
        if hidden % heads or heads % shared_heads or hidden // heads % 2:
            raise ValueError(f"a width of {hidden}, {heads} heads and {shared_heads} shared heads do not divide")
        super().__init__()
        self.heads, width = heads, hidden // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(hidden, shared_heads * width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)
        turns = 10_000 ** (-torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(longest), turns).repeat(1, 2)
        self.register_buffer("rotary", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.o(self.attend(self.norm_1(x)))
        n = self.norm_2(x)
        return x + self.down(nn.functional.silu(self.gate(n)) * self.up(n))

    def attend(self, n: Tensor) -> Tensor:
        width = n.shape[-1] // self.heads
        q, k, v = (part(n).unflatten(-1, (-1, width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = self.rotate(q), self.rotate(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(2)

    def rotate(self, t: Tensor) -> Tensor:
        """Rotates each pair of elements by an angle that depends on the position."""
        cos, sin = self.rotary[:, : t.shape[-2]].to(t.dtype)
        first, second = t.chunk(2, -1)
        return t * cos + torch.cat((-second, first), -1) * sin


class Llama(nn.Module):
    """A decoder like Llama 3's, made of `LlamaLayer`s: embedding, layers, RMSNorm, and an untied output layer.

    Input ``[batch, length]`` token ids below ``vocabulary``, output logits ``[batch, length, vocabulary]``. With
    ``layers=32`` the shape is Llama 3 8B's. ``longest`` is the number of tokens of the longest sequence. A pipeline
    stage that is not the ``first`` has no embedding, and takes hidden states ``[batch, length, hidden]``. One that is
    not the ``last`` has neither norm nor output layer, and returns hidden states. Raises what `LlamaLayer` raises.
    """

    def __init__(
        self,
        layers: int = 32,
        hidden: int = 4096,
        heads: int = 32,
        shared_heads: int = 8,
        inner: int = 14_336,
        vocabulary: int = 128_256,
        longest: int = 8192,
        *,
        first: bool = True,
        last: bool = True,
    ):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden) if first else nn.Identity()
        self.layers = nn.ModuleList(LlamaLayer(hidden, heads, shared_heads, inner, longest) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden) if last else nn.Identity()
        self.head = nn.Linear(hidden, vocabulary, bias=False) if last else nn.Identity()

    def forward(self, indices: Tensor) -> Tensor:
        x = self.tokens(indices)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# Hidden size, layers, heads and inner size of Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional
# Transformers for Language Understanding", section 3.
_BERT = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
BERT_SIZES = {
    "base": dict(zip(_BERT, (768, 12, 12, 3072), strict=True)),
    "large": dict(zip(_BERT, (1024, 24, 16, 4096), strict=True)),
}


def bert(size: str = "base", attention: str = "eager", **config) -> nn.Module:
    """Returns a BERT of transformers, ``"base"`` or ``"large"``, with random weights and in eval mode.

    ``attention`` is transformers' ``attn_implementation`` (``"eager"`` or ``"sdpa"``), and ``config`` overrides fields
    of ``BertConfig``. Input ``[batch, length]`` token ids. Like ``from_pretrained``, it returns a model in eval mode;
    call ``.train()`` for dropout. Raises ``ValueError`` for any other size.
    """
    if size not in BERT_SIZES:
        raise ValueError(f"bert has sizes {', '.join(map(repr, BERT_SIZES))}; {size!r} was given")
    from transformers import AutoModel, BertConfig  # imported here, because the import takes seconds

    built = BertConfig(**{**BERT_SIZES[size], **config})
    return AutoModel.from_config(built, attn_implementation=attention).eval()


def checkpoint_layers(model: nn.Module, every_n_layers: int = 1) -> None:
    """Switches on activation checkpointing for every ``every_n_layers``-th layer of a transformers model,
    non-reentrant.

    It calls transformers' ``model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=...)``,
    which was named ``gradient_checkpointing_enable`` up to 5.20, the last version for Python 3.10. Raises
    ``AttributeError`` for a model that is not from transformers, and ``ValueError`` for one that doesn't support
    checkpointing.
    """
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False}, every_n_layers=every_n_layers)


# Widths of the 3 × 3 convolutions and the poolings: configuration D of Simonyan and Zisserman 2014, "Very Deep
# Convolutional Networks for Large-Scale Image Recognition", table 1.
VGG16 = (64, 64, "pool", 128, 128, "pool", *(256,) * 3, "pool", *(512,) * 3, "pool", *(512,) * 3, "pool")


def vgg(plan: tuple = VGG16, side: int = 224, inplace: bool = True) -> nn.Sequential:
    """Returns a VGG network with random weights: convolutions with ReLU and max poolings by ``plan``, three Linear
    layers.

    Input ``[batch, 3, side, side]``, output ``[batch, 1000]``. ``inplace`` is that of the ReLUs. Dropout follows the
    first two Linear layers, as in the publication. Raises ``ValueError`` if the poolings reduce a side to less than one
    pixel.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width in plan:
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace)]
            channels = width
    left = side // 2 ** plan.count("pool")
    if left < 1:
        raise ValueError(f"{plan.count('pool')} poolings leave nothing of {side} pixels")
    layers.append(nn.Flatten())
    for features, outputs in ((channels * left * left, 4096), (4096, 4096)):
        layers += [nn.Linear(features, outputs), nn.ReLU(inplace), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


class GPTLayer(nn.Module):
    """Wraps an attention and an MLP into a pre-norm GPT layer, with dropout after each; tensors of any shape."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module, dropout: float = 0.1):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(width), attention
        self.norm_2, self.mlp = nn.LayerNorm(width), mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class GPT(nn.Module):
    """Applies an embedding without positions, layers one after another, a norm, and a head without bias.

    Token ids ``[batch, length]`` give logits ``[batch, length, words]``.
    """

    def __init__(self, layers: Iterable[nn.Module], width: int, words: int):
        super().__init__()
        self.embed, self.layers = nn.Embedding(words, width), nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embed(x))))


class MinGPT(nn.Module):
    """A GPT-2 written out operator by operator, as in minGPT (Andrej Karpathy); 36 layers have 708,720,640 parameters.

    Input ``[batch, length]`` token ids and their targets, both below ``vocabulary``. Returns the logits ``[batch,
    length, vocabulary]`` and the mean cross-entropy. ``checkpointing`` is None, "reentrant" or "non-reentrant",
    PyTorch's two kinds of checkpoint, around each layer. Attention consists of matmuls, a mask and a softmax, and GELU
    of elementary operators, so each of them saves its own tensors. Raises ``ValueError`` for any other kind.
    """

    def __init__(
        self,
        layers: int = 36,
        heads: int = 20,
        width: int = 1280,
        vocabulary: int = 65,
        length: int = 128,
        checkpointing: str | None = None,
    ):
        if checkpointing not in (None, "reentrant", "non-reentrant"):
            raise ValueError(f'checkpointing is None, "reentrant" or "non-reentrant"; {checkpointing!r} was given')
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(_MinGPTLayer(width, heads, length) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, indices: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(indices.shape[1], device=indices.device)[None]
        token, position = self.tokens(indices), self.positions(positions)
        x = self.dropout(token + position)
        for layer in self.layers:
            x = self._through(layer, x)
        logits = self.head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    def _through(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self.checkpointing is None:
            return layer(x)
        return checkpoint(layer, x, use_reentrant=self.checkpointing == "reentrant")

    def groups(self, weight_decay: float = 0.1) -> list[dict]:
        """Returns the optimizer's parameter groups: weights of Linear layers with weight decay, all others without."""
        named = dict(self.named_parameters())
        linear = {
            name for name, one in named.items() if one.dim() == 2 and not name.startswith(("tokens", "positions"))
        }
        chosen = ((linear, weight_decay), (set(named) - linear, 0.0))
        return [{"params": [named[name] for name in sorted(names)], "weight_decay": decay} for names, decay in chosen]


class _MinGPTLayer(nn.Module):
    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attention = _MinGPTAttention(width, heads, length)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleList([nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)])

    def forward(self, x: Tensor) -> Tensor:
        up, down, dropout = self.mlp
        x = x + self.attention(self.ln_1(x))
        x = x + dropout(down(_written_out_gelu(up(self.ln_2(x)))))
        return x


class _MinGPTAttention(nn.Module):
    seen: Tensor

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.input, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.of_scores, self.of_output = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("seen", torch.tril(torch.ones(length, length))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            one.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for one in self.input(x).split(width, dim=2)
        )
        scores = (query @ key.transpose(-2, -1)) * key.shape[-1] ** -0.5
        scores = scores.masked_fill(self.seen[:, :, :length, :length] == 0, float("-inf"))
        scores = F.softmax(scores, dim=-1)
        scores = self.of_scores(scores)
        mixed = scores @ value
        mixed = mixed.transpose(1, 2).contiguous().view(batch, length, width)
        return self.of_output(self.output(mixed))


def _written_out_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
