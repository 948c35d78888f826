"""Random calls with complex numbers, of convolutions with a bias that is not contiguous, and of truths of bytes:
`python -m tools.oracle.rules complex --help`."""

from __future__ import annotations

import random

from tools.oracle.rules.indexing import some

COUNT = 150  # snippets a GPU

COMPLEX = ("complex64", "complex128")


def tensor(rng: random.Random, dtype: str, most: int = 3) -> tuple[str, int]:
    """Source of a tensor, and how many dims it has."""
    shape = [some(rng, 2000 if not place else 40) for place in range(rng.randint(1, most))]
    source = f"torch.ones({shape}, device='cuda', dtype=torch.{dtype})"
    if len(shape) == 2 and rng.random() < 0.3:
        source += ".t()"
    return source, len(shape)


def reduction(rng: random.Random) -> str:
    x, dims = tensor(rng, rng.choice(COMPLEX))
    dim = rng.randrange(dims)
    keep = rng.choice((True, False))
    call = rng.choice(
        (
            f"torch.{rng.choice(('var', 'std', 'var_mean', 'std_mean'))}(x, {dim}, keepdim={keep})",
            f"torch.{rng.choice(('var', 'std', 'var_mean', 'std_mean'))}(x, unbiased={keep})",
            f"torch.linalg.vector_norm(x, {rng.choice((1, 2, 3, 0.5))}, {dim}, {keep})",
            f"torch.linalg.vector_norm(x, {rng.choice((2, 3))})",
            f"x.{rng.choice(('sum', 'mean', 'prod'))}({dim})",
            "x.abs().sum()",
        )
    )
    if "prod" in call or rng.random() < 0.5:
        return f"x = {x}\ny = {call}"
    head = f"x = {x}.requires_grad_()\ny = {call}\n"
    return head + ("(y[0] if isinstance(y, tuple) else y).abs().sum().backward()")


def cumulation(rng: random.Random) -> str:
    length = some(rng, 200_000)
    return f"x = torch.ones({length}, device='cuda', dtype=torch.{rng.choice(COMPLEX)})\ny = x.cumsum(0)"


def renorm(rng: random.Random) -> str:
    rows, columns = some(rng, 300), some(rng, 300)
    x = f"torch.ones({rows}, {columns}, device='cuda', dtype=torch.{rng.choice(COMPLEX)})"
    return f"x = {x}.requires_grad_()\ny = torch.renorm(x, {rng.choice((1, 2, 3))}, {rng.randrange(2)}, 1.0)\n" + (
        "y.abs().sum().backward()" if rng.random() < 0.5 else ""
    )


def closeness(rng: random.Random) -> str:
    x, _ = tensor(rng, rng.choice(COMPLEX))
    return f"x = {x}\ny = torch.isclose(x, x)"


def truth(rng: random.Random) -> str:
    x, dims = tensor(rng, rng.choice(("uint8", "uint8", "int8", "bool", "complex64")))
    what = rng.choice(("all", "any"))
    dim = rng.choice(("", str(rng.randrange(dims))))
    return f"x = {x}\ny = x.{what}({dim})"


def convolution(rng: random.Random) -> str:
    dims = rng.randint(1, 3)
    groups = rng.choice((1, 1, 2, 4))
    dtype = rng.choice(("float32", "float16", "complex64"))
    side = rng.randint(5, 9)
    kernel = [rng.randint(1, 3)] * dims
    transposed = rng.random() < 0.4
    lines = [
        f"torch.backends.cudnn.enabled = {rng.choice((False, False, True))}",
        f"x = torch.ones({[2, 4, *[side] * dims]}, device='cuda').to(torch.{dtype})",
        f"w = torch.ones({[4, 4 // groups, *kernel]}, device='cuda').to(torch.{dtype})",
        f"b = torch.ones(8, device='cuda').to(torch.{dtype}){rng.choice(('[::2]', '[::2]', '[:4]'))}",
        f"y = F.conv{'_transpose' if transposed else ''}{dims}d(x, w, b, groups={groups})",
    ]
    return "\n".join(lines)


def draw(rng: random.Random) -> str:
    """One of them, at random."""
    makers = (reduction, reduction, reduction, cumulation, renorm, closeness, truth, truth, convolution, convolution)
    return rng.choice(makers)(rng)
