"""Random reads and writes by index, forward and backward: `python -m tools.oracle.rules indexing`."""

from __future__ import annotations

import random

COUNT = 150  # snippets a GPU

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
    options += [", max_norm=1.0"] * (rng.random() < 0.2)
    lines = [
        f"w = torch.zeros({rows}, {columns}, device='cuda', dtype=torch.{rng.choice(FLOATS)}, requires_grad=True)",
        f"i = {indices(rng, shape, rng.choice(('int64', 'int64', 'int32')))}",
        f"y = F.embedding(i, w{''.join(options)})",
    ]
    return "\n".join([*lines, rng.choice(("y.sum().backward()", "y.backward(torch.ones_like(y))"))])


def floats(rng: random.Random, shape, dtype: str) -> str:
    """Source of `x`, contiguous or not, a leaf in most cases."""
    base = list(shape)
    source = f"x = torch.zeros({{}}, device='cuda', dtype=torch.{dtype})"
    way = rng.choice(["plain"] * 4 + ["transposed", "step"])
    if way == "transposed" and len(base) > 1:
        base[-1], base[-2] = base[-2], base[-1]
        source = source.format(base) + ".mT"
    elif way == "step":
        base[-1] *= 2
        source = source.format(base) + "[..., ::2]"
    return source.format(base) + "; x.requires_grad_()" * (rng.random() < 0.8)


def shape_of(rng: random.Random) -> list[int]:
    return [some(rng, 3000) for _ in range(rng.choice((1, 2)))] + [some(rng, 300)] * (rng.random() < 0.4)


def dim_of(rng: random.Random, shape) -> int:
    return rng.randrange(len(shape))


def ended(lines: list[str]) -> str:
    """The lines with a backward if there is anything to go back to."""
    return "\n".join([*lines, "y.sum().backward()" if any("requires_grad_" in line for line in lines) else ""]).strip()


def select(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    dim = dim_of(rng, shape)
    return ended([floats(rng, shape, dtype), f"i = {indices(rng, [some(rng, 9000)])}", f"y = x.index_select({dim}, i)"])


def index(rng: random.Random) -> str:
    """x[i], x[:, i], x[i, j], with indices of any shape, from the host now and then."""
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    chosen = [some(rng, 9000)] if rng.random() < 0.7 else [some(rng, 90), some(rng, 90)]
    lines = [floats(rng, shape, dtype), f"i = {indices(rng, chosen)}", f"j = {indices(rng, chosen[-1:])}"]
    if rng.random() < 0.15:
        lines[1] = f"i = torch.zeros({chosen}, dtype=torch.int64)"
    forms = ["x[i]", "x[i]"]
    if len(shape) > 1:
        forms += ["x[:, i]", "x[i, j]", "x[..., i]", "x[i, 0]", "x[i, 1:]"]
    if len(shape) > 2:
        forms += ["x[i, :, j]", "x[:, i, j]", "x[i, j, 0]"]
    return ended([*lines, f"y = {rng.choice(forms)}"])


def put(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    count = some(rng, 9000)
    lines = [floats(rng, shape, dtype).split(";")[0], f"i = {indices(rng, [count])}"]
    value = rng.choice(("v", "v", "1.0"))
    if value == "v":
        lines.append(f"v = torch.zeros({[count, *shape[1:]]}, device='cuda', dtype=torch.{dtype})")
        if rng.random() < 0.3:
            lines[-1] += "; v.requires_grad_()"
    if value == "1.0" or rng.random() < 0.4:
        lines.append(f"x[i] = {value}")
        return ended([*lines, "y = x"])
    accumulate = rng.choice(("", ", accumulate=True"))
    return ended([*lines, f"y = x.{rng.choice(('index_put', 'index_put_'))}((i,), v{accumulate})"])


def gather(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    dim, chosen = dim_of(rng, shape), list(shape)
    chosen[dim] = some(rng, 500)
    return ended([floats(rng, shape, dtype), f"i = {indices(rng, chosen)}", f"y = x.gather({dim}, i)"])


def scatter(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    dim, chosen = dim_of(rng, shape), list(shape)
    chosen[dim] = some(rng, 500)
    name = rng.choice(("scatter", "scatter", "scatter_add", "index_add", "index_copy", "index_fill"))
    inplace = rng.choice(("", "", "_"))
    lines = [floats(rng, shape, dtype), f"v = torch.zeros({chosen}, device='cuda', dtype=torch.{dtype})"]
    lines[1] += "; v.requires_grad_()" * (rng.random() < 0.5)
    if inplace:
        lines[0] = lines[0].split(";")[0]
    if name.startswith("index"):
        lines.append(f"i = {indices(rng, chosen[dim : dim + 1])}")
        value = "1.0" if name == "index_fill" else "v"
    else:
        lines.append(f"i = {indices(rng, chosen)}")
        value = "1.0" if name == "scatter" and rng.random() < 0.4 else "v"
    if value == "1.0":
        lines.pop(1)
    return ended([*lines, f"y = x.{name}{inplace}({dim}, i, {value})"])


def roll(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    last = len(shape) - 1
    arguments = rng.choice(("3", f"1, {dim_of(rng, shape)}", f"-2, {last}", f"(1, 2), (0, {last})"))
    return ended([floats(rng, shape, dtype), f"y = x.roll({arguments})"])


def unfold(rng: random.Random) -> str:
    shape, dtype = shape_of(rng), rng.choice(FLOATS)
    dim = dim_of(rng, shape)
    size = rng.randint(1, shape[dim])
    return ended([floats(rng, shape, dtype), f"y = x.unfold({dim}, {size}, {some(rng, 2 * size)})"])


def one_hot(rng: random.Random) -> str:
    shape = [some(rng, 2000), some(rng, 50)][: rng.choice((1, 2))]
    shape = rng.choice((shape, shape, shape, shape, [0], []))
    made = indices(rng, shape) if shape else "torch.zeros((), dtype=torch.int64, device='cuda')"
    return f"y = F.one_hot({made}, {some(rng, 2000) if rng.random() < 0.9 else 0})"


DRAWINGS = [embedding, embedding, select, index, index, put, gather, scatter, scatter, roll, unfold, one_hot]
