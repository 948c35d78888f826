"""Random calls of operators with scratch of their own kind, embedding bags, searches, distances, products of groups:
`python -m tools.oracle.rules assorted --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 200  # snippets a GPU

FLOATS = ("float32", "float32", "bfloat16", "float16", "float64")


def tensor(rng: random.Random, shape: list[int], dtype: str = "float32") -> str:
    """Source of a tensor, in some cases one that is not contiguous."""
    source = f"torch.zeros({shape}, device='cuda', dtype=torch.{dtype})"
    if len(shape) > 1 and rng.random() < 0.3:
        shape = [*shape[:-2], shape[-1], shape[-2]]
        source = f"torch.zeros({shape}, device='cuda', dtype=torch.{dtype}).transpose(-2, -1)"
    return source


def bag(rng: random.Random) -> str:
    dtype = rng.choice(("float32", "float32", "bfloat16", "float16"))
    mode = rng.choice(("mean", "sum", "sum", "max")) if dtype != "bfloat16" else "sum"
    rows, width, count = some(rng, 3000), some(rng, 200), some(rng, 20_000)
    kinds = [rng.choice(("int64", "int64", "int32")) for _ in range(2)]
    options = f"mode='{mode}'"
    if mode != "max" and rng.random() < 0.2:
        options += ", scale_grad_by_freq=True"
    if rng.random() < 0.2:
        options += ", include_last_offset=True"
    if rng.random() < 0.2:
        options += f", padding_idx={rng.randrange(rows)}"
    lines = [
        f"w = torch.zeros({rows}, {width}, device='cuda', dtype=torch.{dtype}, requires_grad=True)",
        f"i = torch.zeros({count}, device='cuda', dtype=torch.{kinds[0]})",
        f"o = torch.arange(0, {count}, {some(rng, 60)}, device='cuda', dtype=torch.{kinds[1]})",
    ]
    if mode == "sum" and "freq" not in options and rng.random() < 0.3:
        lines.append(f"p = torch.zeros({count}, device='cuda', dtype=torch.{dtype}).requires_grad_()")
        options += ", per_sample_weights=p"
    return "\n".join(
        [*lines, f"y = F.embedding_bag(i, w, o, {options})", *["y.sum().backward()"] * (rng.random() < 0.8)]
    )


def searched(rng: random.Random) -> str:
    kinds = ("float32", "float32", "float64", "int64", "int32", "bfloat16")
    rows, many, few = some(rng, 60), some(rng, 3000), some(rng, 300)
    options = rng.choice(("", "", ", right=True", ", out_int32=True"))
    one, other = rng.choice(kinds), rng.choice(kinds)
    if rng.random() < 0.2:
        number = rng.choice((3, 2.5))
        return (
            f"b = torch.zeros({many}, device='cuda', dtype=torch.{one})\ny = torch.searchsorted(b, {number}{options})"
        )
    if rng.random() < 0.3:
        return (
            f"b = torch.zeros({many}, device='cuda', dtype=torch.{one})\nx = {tensor(rng, [rows, few], other)}\n"
            f"y = torch.bucketize(x, b{options})"
        )
    lines = [f"b = {tensor(rng, [rows, many], one)}", f"x = {tensor(rng, [rows, few], other)}"]
    if rng.random() < 0.3:
        lines.append(f"s = {tensor(rng, [rows, many], 'int64')}")
        options += ", sorter=s"
    return "\n".join([*lines, f"y = torch.searchsorted(b, x{options})"])


def found(rng: random.Random) -> str:
    shape = [some(rng, 2000), some(rng, 2000)][: rng.choice((1, 2, 2))]
    source = f"x = {tensor(rng, shape, rng.choice(('float32', 'int32', 'float64')))}\n"
    return source + rng.choice(
        (
            f"y = x.histc({some(rng, 300)}, {rng.choice(('0, 0', '0, 1', '-3, 5'))})",
            f"y = torch.nonzero_static(x, size={some(rng, 3000)})",
            f"y = torch.isin(x, x.new_zeros({rng.randint(1, 9)}), invert={rng.random() < 0.5})",
            f"y = torch.isin(x, x.new_zeros({rng.randint(50, 900)}), assume_unique=True)"
            if shape[0] > 1
            else "y = torch.isin(x, 0)",
        )
    ).replace("x.histc", "x.float().histc")


def modes(rng: random.Random) -> str:
    shape = [some(rng, 2000), some(rng, 2000)]
    return f"x = {tensor(rng, shape, rng.choice(FLOATS))}\ny = x.mode({rng.randrange(2)}, keepdim={rng.random() < 0.5})"


def distances(rng: random.Random) -> str:
    n, width, dtype = some(rng, 300), some(rng, 100), rng.choice(("float32", "float64"))
    source = f"x = {tensor(rng, [n, width], dtype)}.requires_grad_()\n"
    p = rng.choice(("1.0", "2.0", "3.0", "0.0", "float('inf')"))
    if rng.random() < 0.4:
        return source + f"F.pdist(x.contiguous(), {p}).sum().backward()"
    if rng.random() < 0.5:
        other = tensor(rng, [some(rng, 300), width], dtype)
        return source + f"v = {other}\ny = torch.cdist(x.detach(), v, {p})"
    return source + f"v = {tensor(rng, [n, width], dtype)}\ny = torch.dist(x.detach(), v, {p})"


def masked(rng: random.Random) -> str:
    shape, dtype = [some(rng, 1500), some(rng, 1500)], rng.choice(FLOATS)
    mask = tensor(rng, rng.choice((shape, shape, shape[1:])), "bool")
    inplace = rng.choice(("", "_"))
    lines = [f"x = {tensor(rng, shape, dtype)}", f"m = {mask}", f"v = {tensor(rng, shape, dtype)}"]
    return "\n".join([*lines, f"y = x.masked_scatter{inplace}(m, v)"])


def index_reduced(rng: random.Random) -> str:
    shape, dtype, dim = [some(rng, 500), some(rng, 500)], rng.choice((*FLOATS, "int64")), rng.randrange(2)
    chosen = list(shape)
    chosen[dim] = some(rng, 700)
    index = f"torch.zeros({chosen[dim]}, device='cuda', dtype=torch.{rng.choice(('int64', 'int32'))})"
    way, itself = rng.choice(("mean", "mean", "amax", "amin", "prod")), rng.choice((True, True, False))
    inplace = rng.choice(("", "", "_"))
    return (
        f"x = {tensor(rng, shape, dtype)}\ni = {index}\nv = {tensor(rng, chosen, dtype)}\n"
        f"y = x.index_reduce{inplace}({dim}, i, v, '{way}', include_self={itself})"
    )


def scatter_reduced(rng: random.Random) -> str:
    shape, dtype, dim = [some(rng, 500), some(rng, 500)], rng.choice((*FLOATS, "int64")), rng.randrange(2)
    chosen = [rng.randint(1, shape[0]), rng.randint(1, shape[1])]
    source = [chosen[0] + rng.randrange(3), chosen[1] + rng.randrange(3)]
    way, itself = rng.choice(("mean", "mean", "amax", "sum", "prod")), rng.choice((True, True, False))
    return (
        f"x = {tensor(rng, shape, dtype)}\ni = {tensor(rng, chosen, 'int64')}\nv = {tensor(rng, source, dtype)}\n"
        f"y = x.scatter_reduce{rng.choice(('', '_'))}({dim}, i, v, '{way}', include_self={itself})"
    )


def grouped(rng: random.Random) -> str:
    """After a product, which takes cuBLAS's workspace: the oracle reads each group as empty, and multiplies none."""
    dtype = rng.choice(("bfloat16", "bfloat16", "float32", "float16"))
    groups, step = some(rng, 60), 8
    rows, depth, columns = (step * some(rng, 40) for _ in range(3))
    left = [rows, depth] if rng.random() < 0.7 else [groups, rows, depth]
    right = [groups, depth, columns] if rng.random() < 0.7 else [depth, columns]
    lines = [
        "torch.zeros(8, 8, device='cuda') @ torch.zeros(8, 8, device='cuda')",
        f"a = {tensor(rng, left, dtype)}.requires_grad_()",
        f"b = {tensor(rng, right, dtype)}.requires_grad_()",
    ]
    ends = ""
    if len(left) == 2 or len(right) == 2:
        ends = ", offs=o"
        lines.append(f"o = torch.arange(1, {groups + 1}, device='cuda', dtype=torch.int32)")
    return "\n".join([*lines, f"y = torch._grouped_mm(a, b{ends})"])


def normal(rng: random.Random) -> str:
    return (
        f"m = {tensor(rng, [some(rng, 900), some(rng, 900)], rng.choice(FLOATS))}\ny = torch.normal(m, {rng.random()})"
    )


def segments(rng: random.Random) -> str:
    each, count, width = some(rng, 30), some(rng, 300), some(rng, 30)
    shape = [each * count, width][: rng.choice((1, 2, 2))]
    way = rng.choice(("sum", "mean", "max", "min", "prod"))
    lines = [f"x = {tensor(rng, shape, rng.choice(('float32', 'float64', 'bfloat16')))}.requires_grad_()"]
    if rng.random() < 0.5:
        lines.append(f"n = torch.full(({count},), {each}, device='cuda')")
        lines.append(f"y = torch.segment_reduce(x, '{way}', lengths=n, unsafe=True)")
    else:
        lines.append(f"n = torch.arange(0, {each * count + 1}, {each}, device='cuda')")
        lines.append(f"y = torch.segment_reduce(x, '{way}', offsets=n, unsafe=True)")
    return "\n".join([*lines, *["y.sum().backward()"] * (rng.random() < 0.6)])


def chunked(rng: random.Random) -> str:
    count, dtype = some(rng, 12), rng.choice(FLOATS)
    dim = rng.choice((0, 0, 0, 1))
    first = some(rng, 400)
    made = [tensor(rng, [first if dim else some(rng, 400), some(rng, 400)], dtype) for _ in range(count)]
    return f"x = [{', '.join(made)}]\ny = torch._chunk_cat(x, {dim}, {some(rng, 12)})"


def columns(rng: random.Random) -> str:
    batch, channels, side, kernel = some(rng, 8), some(rng, 8), rng.randint(9, 40), rng.randint(1, 5)
    stride, dtype = rng.randint(1, 8), rng.choice(FLOATS)
    if rng.random() < 0.5:
        source = f"x = {tensor(rng, [batch, channels, side, side], dtype)}.requires_grad_()"
        return f"{source}\ny = F.unfold(x, {kernel}, stride={stride})\ny.sum().backward()"
    places = (side - kernel) // stride + 1
    source = f"x = {tensor(rng, [batch, channels * kernel**2, places**2], dtype)}.requires_grad_()"
    return f"{source}\ny = F.fold(x, ({side}, {side}), {kernel}, stride={stride})\ny.sum().backward()"


def pooled(rng: random.Random) -> str:
    batch, channels, side = some(rng, 6), some(rng, 6), 2 * rng.randint(6, 20)
    dims, dtype = rng.choice((2, 2, 3)), rng.choice(("float32", "float64"))
    source = f"x = {tensor(rng, [batch, channels, *[side] * dims], dtype)}"
    if rng.random() < 0.5:
        target = ", ".join(["5"] * dims)
        call = f"y = F.fractional_max_pool{dims}d(x, 3, output_size=({target}))"
        return f"{source}.requires_grad_()\n{call}\ny.sum().backward()"
    return f"{source}\ni = torch.zeros_like(x, dtype=torch.int64)\ny = F.max_unpool{dims}d(x, i, 2)"


def margins(rng: random.Random) -> str:
    rows, classes = some(rng, 3000), some(rng, 300)
    way = rng.choice(("mean", "sum", "none"))
    return (
        f"x = {tensor(rng, [rows, classes], rng.choice(('float32', 'bfloat16', 'float64')))}.requires_grad_()\n"
        f"t = {tensor(rng, [rows, classes], 'int64')}\n"
        f"F.multilabel_margin_loss(x, t, reduction='{way}').sum().backward()"
    )


def repeated(rng: random.Random) -> str:
    n, each = some(rng, 3000), some(rng, 8)
    kind = rng.choice(("int64", "int32"))
    return (
        f"x = torch.zeros({n}, 5, device='cuda', requires_grad=True)\n"
        f"r = torch.full(({n},), {each}, device='cuda', dtype=torch.{kind})\n"
        f"y = x.repeat_interleave(r, 0, output_size={n * each})\ny.sum().backward()"
    )


def normed(rng: random.Random) -> str:
    shape = [some(rng, 1500), some(rng, 1500), some(rng, 20)][: rng.choice((2, 2, 3))]
    inplace = rng.choice(("", "_"))
    call = f"x.renorm{inplace}({rng.choice((1, 2, 3))}, {rng.randrange(len(shape))}, 1.0)"
    return f"x = {tensor(rng, shape, rng.choice(FLOATS))}\ny = {call}"


def written(rng: random.Random) -> str:
    """Reductions and the like into a tensor that is there."""
    shape = [some(rng, 1500), some(rng, 1500)]
    return f"x = {tensor(rng, shape)}\n" + rng.choice(
        (
            f"o = torch.empty({shape[0]}, device='cuda')\ntorch.sum(x, 1, out=o)",
            f"o = torch.empty({shape[1]}, device='cuda')\ntorch.mean(x, 0, out=o)",
            f"o = torch.empty({shape[1]}, device='cuda')\ntorch.amax(x, 0, out=o)",
            f"o = torch.empty({shape[1]}, device='cuda')\ntorch.var(x, 0, out=o)",
            f"o = torch.empty({shape[1]}, device='cuda', dtype=torch.int64)\ntorch.argmax(x, 0, out=o)",
            "o = torch.empty(0, device='cuda')\ntorch.cumsum(x.view(-1) if x.is_contiguous() else x, 0, out=o)",
            "x.view(-1).cumsum_(0) if x.is_contiguous() else x.cumsum_(1)",
            "o = torch.empty(0, device='cuda')\ntorch.linalg.vector_norm(x, out=o)",
            "v, i = x.new_empty(0), x.new_empty(0, dtype=torch.int64)\ntorch.sort(x, out=(v, i))",
            "v, i = x.new_empty(0), x.new_empty(0, dtype=torch.int64)\ntorch.topk(x, 1, out=(v, i))",
        )
    )


DRAWINGS = [
    bag, bag, searched, searched, found, modes, distances, masked, index_reduced,
    scatter_reduced, grouped, normal, segments,
    chunked, columns, columns, pooled, margins, repeated, normed, written, written,
]  # fmt: skip
