"""LoRA adapters on every linear layer except the head, in plain PyTorch.

Adapters have the dtype of the weights and no dropout. (The package peft keeps them in float32 even with bf16 weights,
and by default adapts fewer layers.)
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


class Adapted(nn.Module):
    """A linear layer with an adapter of a given rank: base(x) + B(A(x))."""

    def __init__(self, base: nn.Linear, rank: int):
        super().__init__()
        self.base, self.enabled = base, True
        like = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.a = nn.Linear(base.in_features, rank, **like)
        self.b = nn.Linear(rank, base.out_features, **like)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x)) if self.enabled else self.base(x)


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Runs a model as it is without its adapters."""
    adapted = [one for one in model.modules() if isinstance(one, Adapted)]
    for one in adapted:
        one.enabled = False
    try:
        yield
    finally:
        for one in adapted:
            one.enabled = True


def linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Returns the linear layers of a model, each with the module that holds it and its name there, without the head."""
    embeddings: Any = getattr(model, "get_output_embeddings", None)
    head = embeddings() if embeddings is not None else None
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and child is not head
    ]


def adapt(model: nn.Module, rank: int) -> nn.Module:
    """Freezes the model, adds adapters and returns it. Raises ValueError if it has no linear layer."""
    model.requires_grad_(False)
    linear = linear_layers(model)
    if not linear:
        raise ValueError("LoRA adapts linear layers, and the model has none")
    for parent, name, child in linear:
        setattr(parent, name, Adapted(child, rank))
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()  # pyright: ignore[reportCallIssue]  # as peft does, for checkpoints
    return model


def quantized(model: nn.Module) -> tuple[int, int]:
    """Returns by formula what 4-bit weights save (NF4, blocks of 64, double quantization).

    These are two sizes in bytes: what the frozen linear weights save, and the largest weight in its own dtype. The
    kernel expands a weight to that dtype while it is used.
    """
    bases = [module.base.weight for module in model.modules() if isinstance(module, Adapted)]
    bits = 4 + 8 / 64 + 32 / (64 * 256)  # the value, its share of an 8-bit scale, and of that scale's float32 scale
    saved = sum(weight.numel() * weight.element_size() - int(weight.numel() * bits / 8) for weight in bases)
    return saved, max((weight.numel() * weight.element_size() for weight in bases), default=0)
