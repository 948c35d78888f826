"""The workloads of the league table: models with random weights, and how each is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Transformer:
    """What the formulas for Transformers ask of a model. `gelu_mlp`: two matrices of four times the width, as GPT's."""

    layers: int
    hidden: int
    heads: int
    length: int
    vocabulary: int = 0
    gelu_mlp: bool = True


@dataclass(frozen=True)
class Workload:
    """Two training steps: `make()` builds the model, `inputs()` one (micro-)batch, both on the default device.

    `dtype` is fp32, bf16 (all weights are) or autocast (to bf16); `optimizer` adamw, adamw-loop (foreach=False) or
    sgd; `accumulate` the micro-batches of a step; `sample` the shape of one sample of the batch.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    batch: int
    sample: tuple[int, ...]
    attention: str = ""
    dtype: str = "fp32"
    optimizer: str = "adamw"
    checkpoint: bool = False
    accumulate: int = 1
    shape: Transformer | None = None


class Convolutions(nn.Module):
    """Stages of 3×3 convolutions with batch norm and ReLU, each half the size and twice the channels."""

    def __init__(self, channels: int, stages: int):
        super().__init__()
        layers, inside = [], 3
        for stage in range(stages):
            outside = channels * 2**stage
            layers += [nn.Conv2d(inside, outside, 3, padding=1, stride=1 + (stage > 0)), nn.BatchNorm2d(outside)]
            layers += [nn.ReLU(), nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
            inside = outside
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 100))

    def forward(self, x):
        return self.body(x)


class Recurrent(nn.Module):
    """An LSTM and a Linear layer on its last output."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def _bert(batch, length, attention, layers=12, hidden=768, masked=False, **training) -> Workload:
    from transformers import BertConfig, BertForMaskedLM, BertModel

    def make():
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden}
        config = BertConfig(attn_implementation=attention, num_attention_heads=hidden // 64, **sizes)
        return (BertForMaskedLM if masked else BertModel)(config)

    name = f"bert{'-mlm' if masked else ''}-{layers}x{hidden}"
    vocabulary = 30522 if masked else 0
    return _language(name, make, batch, length, attention, layers, hidden, vocabulary, labels=masked, **training)


def _gpt2(batch, length, attention, layers=12, hidden=768, **training) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    def make():
        sizes = {"n_embd": hidden, "n_layer": layers, "n_head": hidden // 64}
        return GPT2LMHeadModel(GPT2Config(attn_implementation=attention, use_cache=False, **sizes))

    return _language(f"gpt2-{layers}x{hidden}", make, batch, length, attention, layers, hidden, 50257, **training)


def _llama(batch, length, attention, layers=12, hidden=1024, groups=1, dtype="bf16", **training) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    def make():
        heads = hidden // 64
        sizes = {"hidden_size": hidden, "intermediate_size": hidden * 11 // 4, "num_hidden_layers": layers}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads // groups, "vocab_size": 32000}
        return LlamaForCausalLM(LlamaConfig(attn_implementation=attention, use_cache=False, **sizes))

    training |= {"dtype": dtype, "gelu_mlp": False}
    return _language(f"llama-{layers}x{hidden}", make, batch, length, attention, layers, hidden, 32000, **training)


def _t5(batch, length, attention, layers=6, **training) -> Workload:
    from transformers import T5Config, T5ForConditionalGeneration

    def make():
        sizes = {"num_layers": layers, "num_decoder_layers": layers, "decoder_start_token_id": 0}
        return T5ForConditionalGeneration(T5Config(attn_implementation=attention, use_cache=False, **sizes))

    training |= {"gelu_mlp": False}
    return _language(f"t5-{layers}x512", make, batch, length, attention, 2 * layers, 512, 32128, **training)


def _language(
    name, make, batch, length, attention, layers, hidden, vocabulary, *, labels=True, gelu_mlp=True, **training
) -> Workload:
    def inputs():
        tokens = torch.zeros(batch, length, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens} if labels else {"input_ids": tokens}

    shape = Transformer(layers, hidden, hidden // 64, length, vocabulary, gelu_mlp)
    return _named(name, f"{batch}x{length}", make, inputs, batch, (length,), attention, shape, **training)


def _images(name, make, batch, size, attention="", shape=None, argument="pixel_values", **training) -> Workload:
    def inputs():
        return {argument: torch.zeros(batch, 3, size, size)}

    return _named(name, f"{batch}x{size}", make, inputs, batch, (3, size, size), attention, shape, **training)


def _vit(batch, attention, layers=12, hidden=768, **training) -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    def make():
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden}
        config = ViTConfig(attn_implementation=attention, num_attention_heads=hidden // 64, num_labels=100, **sizes)
        return ViTForImageClassification(config)

    shape = Transformer(layers, hidden, hidden // 64, (224 // 16) ** 2 + 1)
    return _images(f"vit-{layers}x{hidden}", make, batch, 224, attention, shape, **training)


def _resnet(batch, **training) -> Workload:
    from transformers import ResNetConfig, ResNetForImageClassification

    return _images("resnet50", lambda: ResNetForImageClassification(ResNetConfig()), batch, 224, **training)


def _convnext(batch, **training) -> Workload:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return _images("convnext-tiny", lambda: ConvNextForImageClassification(ConvNextConfig()), batch, 224, **training)


def _convolutions(batch, size, channels, stages, **training) -> Workload:
    name = f"convolutions-{stages}x{channels}"
    return _images(name, lambda: Convolutions(channels, stages), batch, size, argument="x", **training)


def _mlp(batch, width, layers, **training) -> Workload:
    def make():
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10))

    def inputs():
        return {"input": torch.zeros(batch, width)}

    return _named(f"mlp-{layers}x{width}", f"{batch}", make, inputs, batch, (width,), **training)


def _lstm(batch, length, width, layers, **training) -> Workload:
    def inputs():
        return {"x": torch.zeros(batch, length, width)}

    make, sample = (lambda: Recurrent(width, layers)), (length, width)
    return _named(f"lstm-{layers}x{width}", f"{batch}x{length}", make, inputs, batch, sample, **training)


def _named(name, size, make, inputs, batch, sample, attention="", shape=None, **training) -> Workload:
    marks = [training.get("dtype", "fp32"), training.get("optimizer", "adamw")]
    marks += ["checkpoint"] if training.get("checkpoint") else []
    marks += [f"accumulate{training['accumulate']}"] if "accumulate" in training else []
    full = "-".join([name, size, *filter(None, [attention]), *marks])
    return Workload(full, make, inputs, batch, sample, attention, shape=shape, **training)


CAST = {"dtype": "autocast"}
WORKLOADS = {
    workload.name: workload
    for workload in (
        _bert(32, 512, "eager"),
        _bert(32, 512, "sdpa"),
        _bert(8, 128, "eager"),
        _bert(8, 128, "sdpa", optimizer="sgd"),
        _bert(16, 384, "sdpa", **CAST),
        _bert(20, 512, "eager"),
        _bert(64, 128, "eager", layers=4, hidden=256),
        _bert(32, 256, "eager", layers=4, hidden=512, masked=True, optimizer="adamw-loop"),
        _bert(16, 512, "eager", masked=True, checkpoint=True),
        _bert(16, 512, "eager", accumulate=2),
        _bert(112, 512, "eager"),
        _bert(128, 512, "eager"),
        _gpt2(8, 1024, "sdpa"),
        _gpt2(8, 1024, "eager"),
        _gpt2(7, 1024, "sdpa"),
        _gpt2(4, 512, "sdpa", **CAST),
        _gpt2(4, 512, "eager", optimizer="sgd"),
        _gpt2(4, 1024, "sdpa", layers=24, hidden=1024, checkpoint=True, **CAST),
        _gpt2(16, 256, "eager", layers=4, hidden=256, accumulate=4),
        _gpt2(48, 1024, "sdpa"),
        _llama(4, 2048, "sdpa"),
        _llama(4, 2048, "eager"),
        _llama(8, 1024, "sdpa", groups=4, optimizer="adamw-loop"),
        _llama(4, 2048, "sdpa", checkpoint=True),
        _llama(2, 512, "eager", dtype="fp32"),
        _llama(4, 1024, "sdpa", **CAST),
        _llama(2, 1024, "sdpa", layers=16, hidden=2048, groups=4),
        _llama(16, 2048, "sdpa", groups=4),
        _t5(8, 128, "eager"),
        _t5(16, 256, "sdpa", **CAST),
        _t5(16, 512, "eager", accumulate=2),
        _vit(32, "eager"),
        _vit(64, "sdpa", **CAST),
        _vit(128, "sdpa", layers=12, hidden=192, optimizer="sgd"),
        _vit(32, "eager", layers=12, hidden=384, dtype="bf16"),
        _resnet(32),
        _resnet(96, optimizer="sgd"),
        _convnext(32),
        _convolutions(64, 64, 64, 4),
        _convolutions(128, 128, 32, 5, **CAST),
        _mlp(1024, 4096, 8),
        _mlp(8192, 1024, 12, optimizer="sgd"),
        _mlp(256, 8192, 8, dtype="bf16", optimizer="adamw-loop"),
        _lstm(64, 64, 512, 2),
        _lstm(256, 32, 1024, 1, optimizer="sgd"),
    )
}
