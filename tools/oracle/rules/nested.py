"""Random jagged nested tensors through layers, forward and backward: `python -m tools.oracle.rules nested --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 100  # snippets a GPU

FLOATS = ("float32", "float32", "bfloat16", "float16")
STEPS = (
    "y = nn.Linear({size}, {size}, device='cuda', dtype=torch.{dtype})(y)",
    "y = nn.Linear({size}, {size}, bias=False, device='cuda', dtype=torch.{dtype})(y)",
    "y = nn.LayerNorm({size}, device='cuda', dtype=torch.{dtype})(y)",
    "y = F.gelu(y)",
    "y = F.relu(y) * 2",
    "y = F.dropout(y, 0.1, training=True)",
    "y = y + x",
    "y = y * y",
    "y = F.softmax(y, -1)",
    "y = y.clone()",
)
ENDS = (
    "y.values().sum().backward()",
    "y.values().pow(2).mean().backward()",
    "z = torch.nested.to_padded_tensor(y, 0.0); z.sum().backward()",
    "z = y.sum(-1)",
    "",
)


def lengths(rng: random.Random) -> list[int]:
    return [some(rng, 300) for _ in range(rng.randint(1, 6))]


def draw(rng: random.Random) -> str:
    """A nested tensor of random rows, three layers, and a loss."""
    rows, size, dtype = lengths(rng), 4 * some(rng, 200), rng.choice(FLOATS)
    if rng.random() < 0.5:
        parts = ", ".join(f"torch.ones({n}, {size}, dtype=torch.{dtype})" for n in rows)
        lines = [f"x = torch.nested.nested_tensor([{parts}], layout=torch.jagged, device='cuda', requires_grad=True)"]
    else:
        offsets = [sum(rows[:n]) for n in range(len(rows) + 1)]
        lines = [
            f"v = torch.ones({sum(rows)}, {size}, device='cuda', dtype=torch.{dtype}, requires_grad=True)",
            f"o = torch.tensor({offsets}, device='cuda')",
            f"x = torch.nested.nested_tensor_from_jagged(v, o, min_seqlen={min(rows)}, max_seqlen={max(rows)})",
        ]
    steps = [rng.choice(STEPS).format(size=size, dtype=dtype) for _ in range(3)]
    return "\n".join([*lines, "y = x", *steps, rng.choice(ENDS)])
