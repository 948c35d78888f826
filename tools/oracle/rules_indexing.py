"""Random reads and writes by index, forward and backward: `python -m tools.oracle.rules_indexing --help`."""

from __future__ import annotations

import random

from tools.oracle import cases

FLOATS = ("float32", "float32", "bfloat16", "float16", "float64")


def some(rng: random.Random, most: int) -> int:
    """A number from 1 to `most`, small ones as likely as large ones."""
    return max(1, round(most ** rng.random()))


def indices(rng: random.Random, shape, dtype: str = "int64") -> str:
    """Source of a tensor of indices, contiguous or not."""
    shape, base = list(shape), list(shape)
    made = f"torch.zeros({{}}, dtype=torch.{dtype}, device='cuda')"
    way = rng.choice(["plain"] * 4 + ["expand", "transposed", "step"])
    if way == "expand":
        base[rng.randrange(len(base))] = 1
        return made.format(base) + f".expand({shape})"
    if way == "transposed" and len(base) > 1:
        base[-1], base[-2] = base[-2], base[-1]
        return made.format(base) + ".mT"
    if way == "step":
        base[-1] *= 2
        return made.format(base) + "[..., ::2]"
    return made.format(base)


def embedding(rng: random.Random) -> str:
    rows, columns = some(rng, 200_000), some(rng, 2000)
    shape = [some(rng, 40_000)] if rng.random() < 0.5 else [some(rng, 64), some(rng, 2048)]
    options = [", padding_idx=0"] * (rng.random() < 0.3) + [", scale_grad_by_freq=True"] * (rng.random() < 0.2)
    lines = [
        f"w = torch.zeros({rows}, {columns}, device='cuda', dtype=torch.{rng.choice(FLOATS)}, requires_grad=True)",
        f"i = {indices(rng, shape, rng.choice(('int64', 'int64', 'int32')))}",
        f"y = F.embedding(i, w{''.join(options)})",
    ]
    return "\n".join([*lines, rng.choice(("y.sum().backward()", "y.backward(torch.ones_like(y))"))])


DRAWINGS = [embedding]

if __name__ == "__main__":
    cases.command("indexing", lambda rng: rng.choice(DRAWINGS)(rng), count=150)
