"""The models of the recorded workloads."""

from typing import Any

import torch
from torch import nn

BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def three_linear() -> nn.Module:
    """Returns Linear 1024 → 1024 → 1024 → 2048 with biases, in float32."""
    return nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2048))


def half_linear(repeats: int) -> nn.Module:
    """Returns one Linear(1024, 1024) without bias in float16, applied `repeats` times."""
    layer = nn.Linear(1024, 1024, bias=False, dtype=torch.float16)
    return nn.Sequential(*[layer] * repeats)


def bert(size: str, attention: str) -> nn.Module:
    """Returns a BERT of transformers, "base" or "large", with random weights and in eval mode.

    `attention`: transformers' attn_implementation, "eager" or "sdpa".
    """
    from transformers import AutoModel, BertConfig  # imported here, because the import takes seconds

    sizes: dict[str, Any] = {"base": BERT_BASE, "large": BERT_LARGE}[size]
    config = BertConfig(**sizes)
    return AutoModel.from_config(config, attn_implementation=attention).eval()
