"""Random batch and group norms, with cuDNN and without: `python -m tools.oracle.rules channels --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import FLOATS

COUNT = 120  # snippets a GPU


def norm(rng: random.Random) -> str:
    batch, channels, side = rng.choice((2, 4, 8, 33)), rng.choice((4, 8, 32, 96, 256)), rng.choice((1, 7, 14, 32))
    dtype, group = rng.choice(FLOATS), rng.random() < 0.35
    shape = rng.choice(([batch * 100, channels], [batch, channels, side + 1], [batch, channels, side, side]))
    affine, training, last = rng.random() < 0.8, rng.random() < 0.8, len(shape) == 4 and rng.random() < 0.5
    wanted = not affine or rng.random() < 0.8
    to = ".contiguous(memory_format=torch.channels_last)" if last else ""
    kind = f"GroupNorm(4, {channels}" if group else f"BatchNorm{2 if len(shape) == 4 else 1}d({channels}"
    of_weights = dtype if group or dtype == "float64" or rng.random() < 0.5 else "float32"
    tensor = f"torch.ones({shape}, device='cuda', dtype=torch.{dtype}){to}"
    return "\n".join(
        [
            f"torch.backends.cudnn.enabled = {rng.random() < 0.4}",
            f"x = {tensor}.requires_grad_({wanted})",
            f"m = nn.{kind}, affine={affine}, device='cuda', dtype=torch.{of_weights}).train({training})",
            "y = m(x)",
            rng.choice((f"y.backward({tensor})", f"y.backward({tensor})", "y.sum().backward()")),
        ]
    )


draw = norm
