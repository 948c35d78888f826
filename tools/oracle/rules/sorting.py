"""Random sorts, selections, cumulative sums and samples: `python -m tools.oracle.rules sorting --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 200  # snippets a GPU

DTYPES = ("float32", "float32", "bfloat16", "float16", "float64", "int64", "int32")


def tensor(rng: random.Random, shape, dtypes=DTYPES) -> str:
    """Source of `x`."""
    base = list(shape)
    way = rng.choice(["plain"] * 4 + ["transposed", "step", "expand"])
    source = f"torch.zeros({{}}, device='cuda', dtype=torch.{rng.choice(dtypes)})"
    if way == "transposed" and len(base) > 1:
        base[-1], base[-2] = base[-2], base[-1]
        return source.format(base) + ".mT"
    if way == "step":
        base[-1] *= 2
        return source.format(base) + "[..., ::2]"
    if way == "expand" and len(base) > 1:
        base[0] = 1
        return source.format(base) + f".expand({shape})"
    return source.format(base)


def rows(rng: random.Random) -> list[int]:
    shape = [some(rng, 1000), some(rng, 60_000)] if rng.random() < 0.6 else [some(rng, 2_000_000)]
    if rng.random() < 0.2:
        shape.insert(rng.randrange(2), some(rng, 10))
    return shape


def sort(rng: random.Random) -> str:
    shape = rows(rng)
    name = rng.choice(("sort", "sort", "argsort"))
    dim = rng.choice((-1, -1, 0, len(shape) - 1))
    options = rng.choice(("", ", descending=True", ", stable=True"))
    return f"x = {tensor(rng, shape)}\ny = x.{name}(dim={dim}{options})"


def topk(rng: random.Random) -> str:
    shape = rows(rng)
    dim = rng.choice((-1, -1, 0))
    k = min(some(rng, 50) if rng.random() < 0.8 else some(rng, 9000), shape[dim])
    return f"x = {tensor(rng, shape)}\ny = x.topk({k}, dim={dim}{rng.choice(('', '', ', sorted=False'))})"


def cumulative(rng: random.Random) -> str:
    shape = rows(rng)
    to = rng.choice(("", "", ", dtype=torch.float32", ", dtype=torch.float64"))
    source = tensor(rng, shape, (*DTYPES, "bool"))
    return f"x = {source}\ny = x.{rng.choice(('cumsum', 'cumsum', 'cumprod'))}({rng.choice((0, -1))}{to})"


def permutation(rng: random.Random) -> str:
    return f"y = torch.randperm({some(rng, 2_000_000)}, device='cuda')"


def sample(rng: random.Random) -> str:
    shape = [some(rng, 40), some(rng, 60_000)] if rng.random() < 0.7 else [some(rng, 60_000)]
    count = rng.choice((1, 1, min(5, shape[-1])))
    source = tensor(rng, shape, DTYPES[:5])
    return f"x = {source}\ny = torch.multinomial(x, {count}{rng.choice(('', '', ', replacement=True'))})"


def middle(rng: random.Random) -> str:
    shape = rows(rng)
    name = rng.choice(("median", "nanmedian", "kthvalue"))
    dim = rng.choice((-1, 0, len(shape) - 1))
    arguments = f"{some(rng, shape[dim])}, dim={dim}" if name == "kthvalue" else rng.choice(("", f"dim={dim}"))
    return f"x = {tensor(rng, shape, DTYPES[:5])}\ny = x.{name}({arguments})"


DRAWINGS = [sort, sort, topk, topk, cumulative, permutation, sample, middle]
