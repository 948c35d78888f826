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


# Widths of the 3 × 3 convolutions and the poolings: configurations D and A of Simonyan and Zisserman 2014, "Very Deep
# Convolutional Networks for Large-Scale Image Recognition", table 1.
VGG16 = (64, 64, "pool", 128, 128, "pool", *(256,) * 3, "pool", *(512,) * 3, "pool", *(512,) * 3, "pool")
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


def vgg(plan: tuple = VGG16, side: int = 224, inplace: bool = True) -> nn.Sequential:
    """A VGG network with random weights: convolutions with ReLU and max poolings by ``plan``, three Linear layers.

    Input ``[batch, 3, side, side]``, output ``[batch, 1000]``. ``inplace`` is that of the ReLUs. There is dropout after
    the first two Linear layers, as in the paper. Raises ``ValueError`` if a side is left below one pixel.
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
