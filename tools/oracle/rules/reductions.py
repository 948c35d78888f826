"""Random reductions, over any dims of any layout: `python -m tools.oracle.rules reductions --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 400  # snippets a GPU

DTYPES = ("float32", "float32", "bfloat16", "float16", "float64", "int64", "int32", "bool")
FLOATING = ("mean", "norm", "var", "std", "logsumexp", "nansum", "var_mean", "std_mean")
LARGEST = 2**32  # bytes, of a share LARGE of the tensors; of the others 2**28
LARGE = 0.05


def tensor(rng: random.Random) -> tuple[str, int, str]:
    """Source of a tensor, how many dims it has, and its dtype."""
    dtype = rng.choice(DTYPES)
    dims = rng.choice((1, 2, 2, 3, 3, 4))
    most = LARGEST if rng.random() < LARGE else 2**28
    shape = [some(rng, 20_000) for _ in range(dims)]
    while True:
        count = 8
        for size in shape:
            count *= size
        if count <= most:
            break
        shape[rng.randrange(dims)] = some(rng, 200)
    base = list(shape)
    way = rng.choice(["plain"] * 4 + ["permuted", "slice", "expand", "step", "offset"])
    index = rng.randrange(dims)
    if way == "expand":
        base[index] = 1
    elif way == "slice":
        base[index] += 3
    elif way == "step":
        base[index] *= 2
    elif way == "offset":
        base[0] += 1
    source = f"torch.empty({base}, device='cuda', dtype=torch.{dtype})"
    if way == "expand":
        source += f".expand({shape})"
    elif way == "permuted":
        order = list(range(dims))
        rng.shuffle(order)
        source += f".permute({order})"
    elif way in ("slice", "step"):
        source += f".narrow({index}, 1, {shape[index]})" if way == "slice" else ""
        source += f"[{', '.join([':'] * index + ['::2'])}]" if way == "step" else ""
    elif way == "offset":
        source += "[1:]"
    return source, dims, dtype


def call(rng: random.Random, dims: int, dtype: str) -> str:
    """Source of a reduction of `x`."""
    several = f"[{', '.join(map(str, sorted(rng.sample(range(dims), rng.randint(1, dims)))))}]"
    one = str(rng.randrange(dims))
    keep = ", keepdim=True" if rng.random() < 0.2 else ""
    name = rng.choice(
        ["sum"] * 5
        + ["amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "aminmax", "count_nonzero"]
        + ([*FLOATING, "mean", "mean"] if dtype.startswith(("float", "bfloat")) else [])
    )
    if dtype == "bool" and name.startswith("arg"):  # refused
        name = "any"
    if name == "norm":
        order = rng.choice(("2", "1", "float('inf')", "3", "0"))
        return f"torch.linalg.vector_norm(x, {order}{rng.choice(('', f', dim={several}'))})"
    if name in ("max", "min", "argmax", "argmin", "any", "all"):
        return rng.choice((f"x.{name}()", f"x.{name}({one}{keep})", f"x.{name}(dim={one}{keep})"))
    if name == "aminmax":
        return rng.choice(("x.aminmax()", f"x.aminmax(dim={one}{keep})"))
    if name == "count_nonzero":
        return rng.choice(("x.count_nonzero()", f"x.count_nonzero({several})"))
    if name in ("amax", "amin", "logsumexp"):
        return f"x.{name}({several}{keep})"
    to = rng.choice(("", "", "", ", dtype=torch.float32", ", dtype=torch.float64", ", dtype=torch.bfloat16"))
    to = to if name in ("sum", "mean", "nansum") else ""
    whole = "x.nansum()" if name == "nansum" else f"x.{name}({to[2:]})"
    return rng.choice((whole, f"x.{name}({several}{keep}{to})", f"x.{name}({several}{keep}{to})"))


def draw(rng: random.Random) -> str:
    source, dims, dtype = tensor(rng)
    return f"x = {source}\ny = {call(rng, dims, dtype)}"
