"""Tokens per second and model FLOPs utilization (MFU) of a training step.

MFU is the share of the GPU's published peak that the FLOPs of the model take, counted by a formula as published tables
count them: work that is done again (checkpointing) does not count, and attention counts the masked half.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from simgpu.clock.estimates import TimeEstimate, digits

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Shape:
    """Holds what the formula takes from a model.

    trained, frozen: elements of parameters, without embeddings that are only looked up. attention: layers × heads ×
    size of a head, 0 if the configuration does not say. experts: whether a token uses only some of the parameters.
    """

    trained: int
    frozen: int
    attention: int
    experts: bool


def shape_of(model: nn.Module) -> Shape:
    """Returns the shape of a model of transformers, or of any other by its parameters."""
    used = {id(one) for module in model.modules() if not isinstance(module, nn.Embedding) for one in _own(module)}
    matrices = [one for one in model.parameters() if id(one) in used]  # each once
    trained = sum(one.numel() for one in matrices if one.requires_grad)
    config = next((one.config for one in model.modules() if getattr(one, "config", None) is not None), None)
    layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    size = getattr(config, "head_dim", None)
    if not size and heads:
        size = getattr(config, "hidden_size", 0) // heads
    attention = layers * heads * size if layers and heads and size else 0
    experts = any(getattr(config, name, None) for name in _EXPERTS)
    return Shape(trained, sum(one.numel() for one in matrices) - trained, attention, experts)


def _own(module: nn.Module):
    return module.parameters(recurse=False)


@dataclass(frozen=True)
class Speed:
    """Holds the speed of a training step, of each GPU.

    tokens: in a step. tokens_per_second, low, high: by the estimated time and the ends of its range. mfu, mfu_low,
    mfu_high: shares of `peak`, None if they are not known. flops: of the model in a step, counted by `formula`.
    """

    tokens: int
    tokens_per_second: float
    low: float
    high: float
    mfu: float | None
    mfu_low: float | None
    mfu_high: float | None
    flops: float | None
    peak: float | None
    formula: str

    def __str__(self) -> str:
        text = f"about {digits(self.tokens_per_second)} tokens/s per GPU, estimate; {digits(self.low)} to "
        text += digits(self.high)
        if self.mfu is None or self.mfu_low is None or self.mfu_high is None:
            return f"{text} ({self.formula})"
        mfu, low, high = (digits(100 * one) for one in (self.mfu, self.mfu_low, self.mfu_high))
        return f"{text}. MFU about {mfu} %, estimate; {low} to {high} % ({self.formula})"


def speed(shape: Shape, length: int, tokens: int, time: TimeEstimate, peak: float | None) -> Speed:
    """Returns the speed of a step of `tokens` tokens in sequences of `length`; `peak` is in FLOP/s."""
    rate, low, high = (tokens / one for one in (time.seconds, time.high, time.low))
    if peak is None or shape.experts:
        why = "a token uses only some of the experts" if shape.experts else "the peak of this type is not published"
        return Speed(tokens, rate, low, high, None, None, None, None, peak, f"no MFU: {why}")
    per_token = 6 * shape.trained + 4 * shape.frozen + 12 * shape.attention * length
    mfu, mfu_low, mfu_high = (per_token * one / peak for one in (rate, low, high))
    formula = f"{_formula(shape, length)}; peak {peak / 1e12:,.0f} TFLOP/s"
    flops = float(per_token * tokens)
    return Speed(tokens, rate, low, high, mfu, mfu_low, mfu_high, flops, peak, formula)


def _formula(shape: Shape, length: int) -> str:
    """Returns the FLOPs of a token in words. A frozen parameter has no gradient of its own."""
    terms = [f"6 × {shape.trained:,} parameters"]
    terms += [f"4 × {shape.frozen:,} frozen ones"] if shape.frozen else []
    terms += [f"12 × {shape.attention:,} × {length:,} of attention"] if shape.attention else []
    return " + ".join(terms) + (" FLOPs a token" if shape.attention else " FLOPs a token, without attention")
