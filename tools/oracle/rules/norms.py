"""Random normalisations and softmaxes, forward and backward: `python -m tools.oracle.rules norms`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import FLOATS, some
from tools.oracle.rules.products import laid_out

COUNT = 150  # snippets a GPU

ENDS = (
    "y.sum().backward()",
    "y.mean().backward()",
    "y.backward(torch.ones_like(y))",
    "(y * 2).sum().backward()",
    "y.backward(torch.ones_like(y.mT).mT)",
)


def ended(rng: random.Random, lines: list[str]) -> str:
    """The lines with a backward, in four of five."""
    return "\n".join(lines + [rng.choice(ENDS)] * (rng.random() < 0.8))


def leaf(rng: random.Random, name: str, shape, dtype: str) -> str:
    """Source of an operand, a leaf in most cases."""
    return f"{name} = {laid_out(rng, shape, dtype)}" + f"; {name}.requires_grad_()" * (rng.random() < 0.85)


def layer_norm(rng: random.Random) -> str:
    shape = [some(rng, 20), some(rng, 500), some(rng, 3000)]
    if rng.random() < 0.2:
        shape = [some(rng, 20), 10_000 + some(rng, 200_000), some(rng, 300)]
    normalised = shape[-rng.choice((1, 1, 1, 1, 2)) :]
    dtype = rng.choice(FLOATS)
    lines = [leaf(rng, "x", shape, dtype)]
    options = ""
    if rng.random() < 0.85:
        lines.append(leaf(rng, "w", normalised, dtype))
        options += ", weight=w"
        if rng.random() < 0.8:
            bias = leaf(rng, "b", normalised, dtype)
            if (
                "requires_grad_" not in lines[-1]
            ):  # PyTorch fails on many rows: it sizes the bias by the weight's gradient
                bias = bias.split(";")[0]
            lines.append(bias)
            options += ", bias=b"
    return ended(rng, [*lines, f"y = F.layer_norm(x, {normalised}{options})"])


def rms_norm(rng: random.Random) -> str:
    shape = [some(rng, 20), some(rng, 500), some(rng, 3000)]
    if rng.random() < 0.2:
        shape = [some(rng, 20), 10_000 + some(rng, 200_000), some(rng, 300)]
    normalised = shape[-rng.choice((1, 1, 1, 1, 2)) :]
    dtype = rng.choice(FLOATS)
    lines = [leaf(rng, "x", shape, dtype)]
    if rng.random() < 0.85:
        lines.append(leaf(rng, "w", normalised, dtype))
    return ended(rng, [*lines, f"y = F.rms_norm(x, {normalised}{', weight=w' * (len(lines) > 1)})"])


def softmax(rng: random.Random) -> str:
    shape = [some(rng, 40) for _ in range(rng.choice((1, 2, 2)))] + [some(rng, 3000)]
    dtype = rng.choice(FLOATS)
    function = rng.choice(("softmax", "softmax", "log_softmax"))
    to = rng.choice(("", "", "", ", dtype=torch.float32"))
    dim = rng.choice((-1, -1, 0, len(shape) - 1, len(shape) // 2))
    return ended(rng, [leaf(rng, "x", shape, dtype), f"y = F.{function}(x, {dim}{to})"])


def weight_norm(rng: random.Random) -> str:
    shape = [some(rng, 1000) for _ in range(rng.choice((2, 2, 3, 4)))]
    shape = [shape[0], *(min(size, 30) for size in shape[1:])]
    dim, dtype = rng.choice((0, 0, len(shape) - 1, 1)), rng.choice(FLOATS)
    norms = [size if axis == dim else 1 for axis, size in enumerate(shape)]
    lines = [leaf(rng, "v", shape, dtype), leaf(rng, "g", norms, dtype)]
    return ended(rng, [*lines, f"y = torch._weight_norm(v, g, {dim})"])


DRAWINGS = [layer_norm, layer_norm, rms_norm, softmax, softmax, weight_norm]
