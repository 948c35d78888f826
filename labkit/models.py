"""The course's models: built from configs with random weights, nothing is downloaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ThreeLinear(nn.Module):
    """Linear 1024 → 1024 → 1024 → 2048 with biases, no activation between them: 4,198,400 parameters.

    Input ``[batch, 1024]``, output ``[batch, 2048]``. The recorded figures are for batch 10,240 in float32.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.net_a = nn.Linear(1024, 1024, dtype=dtype)
        self.net_b = nn.Linear(1024, 1024, dtype=dtype)
        self.net_c = nn.Linear(1024, 2048, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.net_c(self.net_b(self.net_a(x)))


class HalfLinear(nn.Module):
    """One Linear(1024, 1024) without bias in float16, applied ``repeats`` times: 1,048,576 parameters.

    Input and output ``[batch, 1024]`` in float16. Raises ``ValueError`` for fewer than one repetition.
    """

    def __init__(self, repeats: int = 2):
        if repeats < 1:
            raise ValueError(f"HalfLinear applies its layer at least once; repeats={repeats} was given")
        super().__init__()
        self.repeats = repeats
        self.linear = nn.Linear(1024, 1024, bias=False, dtype=torch.float16)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.repeats):
            x = self.linear(x)
        return x


# Hidden size, layers, heads and inner size of Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional
# Transformers for Language Understanding", section 3.
_BERT = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
BERT_SIZES = {
    "base": dict(zip(_BERT, (768, 12, 12, 3072), strict=True)),
    "large": dict(zip(_BERT, (1024, 24, 16, 4096), strict=True)),
}


def bert(size: str = "base", attention: str = "eager", **config) -> nn.Module:
    """A BERT of transformers, ``"base"`` or ``"large"``, with random weights and in eval mode.

    ``attention`` is transformers' ``attn_implementation`` (``"eager"`` or ``"sdpa"``); ``config`` overrides
    fields of ``BertConfig``. Input ``[batch, length]`` token ids. ``from_pretrained`` too returns a model in
    eval mode; call ``.train()`` for dropout. Raises ``ValueError`` for another size.
    """
    if size not in BERT_SIZES:
        raise ValueError(f"bert has sizes {', '.join(map(repr, BERT_SIZES))}; {size!r} was given")
    from transformers import AutoModel, BertConfig  # here: the import takes seconds

    built = BertConfig(**{**BERT_SIZES[size], **config})
    return AutoModel.from_config(built, attn_implementation=attention).eval()
