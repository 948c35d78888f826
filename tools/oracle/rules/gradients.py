"""Random gradients that take another way under a dispatch mode: `python -m tools.oracle.rules gradients --help`.

The operators of simgpu/autograd/formulas.py and simgpu/ops/gradients.py, in sums with others of their like, once
and twice.
"""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import FLOATS, indices, some
from tools.oracle.rules.norms import leaf
from tools.oracle.rules.products import laid_out

COUNT = 150  # snippets a GPU


def broadcast(rng: random.Random, shape) -> list[int]:
    """A shape that broadcasts to `shape`."""
    return [1 if rng.random() < 0.25 else n for n in shape][rng.choice((0, 0, 0, 1)) :]


def clamp(rng: random.Random, shape, dtype: str) -> list[str]:
    lines, given = [leaf(rng, "x", shape, dtype)], []
    for name in ("min", "max"):
        if rng.random() < 0.8 or (name == "max" and not given):
            lines.append(leaf(rng, name, broadcast(rng, shape), dtype))
            given.append(f"{name}={name}")
    return [*lines, f"y = x.clamp({', '.join(given)})"]


def of_all(rng: random.Random, shape, dtype: str) -> list[str]:
    return [
        leaf(rng, "x", shape, dtype),
        f"y = x.{rng.choice(('max', 'min', 'amax', 'trace' if len(shape) == 2 else 'max'))}()",
    ]


def along(rng: random.Random, shape, dtype: str) -> list[str]:
    dim = rng.randrange(-len(shape), len(shape))
    call = rng.choice(("max(dim)[0]", "min(dim, keepdim=True)[0]", "cummax(dim)[0]", "cummin(dim)[0]", "amin(dim)"))
    return [leaf(rng, "x", shape, dtype), f"y = x.{call.replace('dim)', f'{dim})').replace('dim,', f'{dim},')}"]


def picked(rng: random.Random, shape, dtype: str) -> list[str]:
    lines = [leaf(rng, "x", shape, dtype)]
    way = rng.choice(("take", "take", "index_select", "gather", "take_along_dim"))
    if way == "take":
        return [*lines, f"i = {indices(rng, [some(rng, 40), some(rng, 400)])}", "y = x.take(i)"]
    dim = rng.randrange(len(shape))
    if way == "index_select":
        return [*lines, f"i = {indices(rng, [some(rng, 4000)])}", f"y = x.index_select({dim}, i)"]
    shape = [some(rng, n) for n in shape] if way == "gather" else shape
    return [*lines, f"i = {indices(rng, shape)}", f"y = x.{way}({f'{dim}, i' if way == 'gather' else f'i, {dim}'})"]


def scattered(rng: random.Random, shape, dtype: str) -> list[str]:
    dim, reduce = rng.randrange(len(shape)), rng.choice(("amax", "amin", "sum"))
    lines = [leaf(rng, "x", shape, dtype)]
    source = [some(rng, n) for n in shape]
    lines += [leaf(rng, "s", source, dtype), f"i = {indices(rng, source)}"]
    return [*lines, f"y = x.scatter_reduce({dim}, i, s, '{reduce}')"]


def scanned(rng: random.Random, shape, dtype: str) -> list[str]:
    call = rng.choice(("cumprod", "logcumsumexp"))
    return [leaf(rng, "x", shape, dtype), f"y = x.{call}({rng.randrange(len(shape))})"]


def moments(rng: random.Random, shape, dtype: str) -> list[str]:
    dims = rng.choice(("0", "-1", "(0, 1)"))
    options = rng.choice(("", ", keepdim=True", ", correction=0"))
    call = rng.choice(("var_mean", "std_mean"))
    combined = rng.choice(("y = a + b", "y = a", "y = b", "y = a * b"))
    return [leaf(rng, "x", shape, dtype), f"a, b = torch.{call}(x, {dims}{options})", combined]


def of_two(rng: random.Random, shape, dtype: str) -> list[str]:
    lines = [leaf(rng, "x", shape, dtype), leaf(rng, "t", broadcast(rng, shape), dtype)]
    return [*lines, f"y = {rng.choice(('torch.atan2(x, t)', 'x.atan2(t) * x', 'torch.max(x, t)', 'x.minimum(t)'))}"]


def probabilities(rng: random.Random, shape, dtype: str) -> list[str]:
    lines = [leaf(rng, "x", shape, dtype), leaf(rng, "t", shape, dtype)]
    function = rng.choice(("binary_cross_entropy", "binary_cross_entropy_with_logits"))
    options = rng.choice(("", ", reduction='sum'", ", reduction='none'"))
    if rng.random() < 0.4:
        lines.append(f"w = {laid_out(rng, shape, dtype)}")
        options += ", weight=w"
    if function.endswith("logits") and rng.random() < 0.4:
        lines.append(f"p = {laid_out(rng, shape[-1:], dtype)}")
        options += ", pos_weight=p"
    return [*lines, f"y = F.{function}(x, t{options})"]


DRAWINGS = [clamp, clamp, of_all, along, along, picked, picked, scattered, scanned, moments, of_two, probabilities]
ENDS = (
    "y.sum().backward()",
    "y.sum().backward()",
    "y.backward(torch.ones_like(y))",
    "(y * 2 + y.exp()).sum().backward()",
    "(y.sin() + (x * 3).sum()).sum().backward()",
)
TWICE = (
    "g, = torch.autograd.grad(y.sum(), x, create_graph=True)\n(g * g).sum().backward()",
    "y.sum().backward(retain_graph=True)\ny.sum().backward()",
)


def draw(rng: random.Random) -> str:
    """A gradient; of two hundredths in a graph that is gone through twice."""
    shape = [some(rng, 1500), some(rng, 1500)] if rng.random() < 0.7 else [some(rng, 40), some(rng, 90), some(rng, 200)]
    drawing = rng.choice(DRAWINGS)
    lines = drawing(rng, shape, rng.choice(FLOATS))
    if "requires_grad_()" not in lines[0]:
        lines[0] += "; x.requires_grad_()"
    twice = rng.random() < 0.15 and drawing is not probabilities
    return "\n".join([*lines, rng.choice(TWICE if twice else ENDS)])
