"""Snippets in which tensors of several dtypes meet: what is converted, and what CUDA's kernels refuse."""

from __future__ import annotations

import random

COUNT = 150  # snippets a GPU

FLOATS = ("float32", "float32", "bfloat16", "float16", "float64")
ANY = (*FLOATS, "int64", "int32")


def tensor(shape, dtype: str, host: bool = False) -> str:
    """Code that makes a tensor of ones."""
    device = "" if host else ", device='cuda'"
    return f"torch.ones({shape}, dtype=torch.{dtype}{device})"


def where(rng: random.Random) -> str:
    """Numbers of the host, numbers of the GPU, rows, columns, transposed tensors."""
    rows, columns = rng.randrange(1, 40), rng.randrange(1, 40)

    def operand(dtype: str) -> str:
        kind = rng.randrange(6)
        if kind == 0:
            return tensor((), dtype, host=True)
        if kind == 1:
            return tensor((), dtype)
        if kind == 2:
            return tensor((rows, 1), dtype)
        if kind == 3:
            return tensor((columns, rows), dtype) + ".t()"
        return tensor((rows, columns), dtype)

    mask = tensor(rng.choice([(rows, columns), (rows, 1), (columns,)]), "bool")
    made = f"m = {mask}; a = {operand(rng.choice(ANY))}; b = {operand(rng.choice(ANY))}; "
    return made + rng.choice(["y = torch.where(m, a, b)", "y = torch.where(m, a, 2.0)", "y = a.where(m, b)"])


def put(rng: random.Random) -> str:
    """Written by index: dtypes and shapes that fit and that do not."""
    rows, columns, depth, n = (rng.randrange(1, 12) for _ in range(4))
    dtype = rng.choice(FLOATS)
    other = dtype if rng.random() < 0.5 else rng.choice(ANY)
    indices, chosen = rng.choice(
        [
            ("(i,)", (n, columns, depth)), ("(None, i)", (rows, n, depth)), ("(i, j)", (n, depth)),
            ("(i, None, j)", (n, columns)), ("(None, i, j)", (rows, n)), ("(i[:, None], j)", (n, n, depth)),
        ]
    )  # fmt: skip
    shape = rng.choice([chosen, chosen, chosen[1:], (1, *chosen[1:]), (), (*chosen, 2), (n + 1, *chosen[1:])])
    place = tensor((n,), rng.choice(["int64", "int64", "int64", "int32"])) + " * 0"
    made = f"x = {tensor((rows, columns, depth), dtype)}; i = {place}; j = {place}; v = {tensor(shape, other)}; "
    call = rng.choice(["x.index_put_({}, v)", "y = x.index_put({}, v)", "x.index_put_({}, v, accumulate=True)"])
    return made + call.format(indices)


def norm(rng: random.Random) -> str:
    """Layer norm and group norm, whose weights are of another dtype than their input."""
    batch, groups, each, pixels = (rng.randrange(1, 9) for _ in range(4))
    channels = groups * each
    own, first, second = (rng.choice(FLOATS) for _ in range(3))
    second = rng.choice([first, first, second])
    weights = rng.choice(["w, b", "w", "None, b", "w, b"])
    if rng.random() < 0.5:
        made = f"x = {tensor((batch, channels), own)}; w = {tensor((channels,), first)}; "
        made += f"b = {tensor((channels,), second)}; "
        return made + f"y = F.layer_norm(x, ({channels},), {weights})"
    made = f"x = {tensor((batch, channels, pixels), own)}; w = {tensor((channels,), first)}; "
    return made + f"b = {tensor((channels,), second)}; y = F.group_norm(x, {groups}, {weights})"


def loss(rng: random.Random) -> str:
    """Classes that are no int64, weights and targets of another dtype."""
    batch, classes, pixels = (rng.randrange(1, 12) for _ in range(3))
    reduction = rng.choice(["mean", "sum", "none"])
    if rng.random() < 0.3:
        dtype = rng.choice(FLOATS)
        made = f"x = {tensor((batch, pixels), dtype)}; t = {tensor((batch, pixels), rng.choice([dtype, 'int64']))}; "
        return made + f"y = F.binary_cross_entropy(x, t, reduction='{reduction}')"
    shape = rng.choice([(batch,), (batch, pixels)])
    scores = (batch, classes, *shape[1:])
    made = (
        f"x = {tensor(scores, rng.choice(FLOATS))}; t = {tensor(shape, rng.choice(['int64', 'int64', 'int32']))} * 0; "
    )
    return made + f"y = F.nll_loss(x, t, reduction='{reduction}')"


def distance(rng: random.Random) -> str:
    """torch.cdist of two dtypes, and masked_scatter_."""
    rows, others, columns = (rng.randrange(1, 24) for _ in range(3))
    first, second = rng.choice(FLOATS[::4]), rng.choice(FLOATS[::4])
    if rng.random() < 0.5:
        made = f"x = {tensor((rows, columns), first)}; v = {tensor((others, columns), second)}; "
        return made + f"y = torch.cdist(x, v, p={rng.choice([1.0, 3.0])})"
    made = f"x = {tensor((rows, columns), first)}; v = {tensor((rows * columns,), second)}; "
    made += f"m = {tensor((rows, 1), 'bool')}; "
    return made + "x.masked_scatter_(m, v)"


def cast(rng: random.Random) -> str:
    """Operators of several tensors under autocast."""
    rows, inner, columns, batch = (rng.randrange(1, 24) for _ in range(4))
    first, second, third = (rng.choice(("float32", "float32", "bfloat16")) for _ in range(3))
    made = f"a = {tensor((batch, rows, inner), first)}; b = {tensor((batch, inner, columns), second)}; "
    made += f"c = {tensor((batch, columns, rows), third)}\n"
    call = rng.choice(
        [
            "y = torch.einsum('bij,bjk->bik', a, b)",
            "y = torch.einsum('bij,bjk,bkl->bil', a, b, c)",
            "y = torch.einsum('bij,bj->bi', a, b[:, :, 0])",
            "y = torch.einsum('bi,bk->bik', a[:, :, 0], b[:, 0])",
            "y = torch.cat([a.flatten(), b.flatten(), c.flatten()])",
            "y = torch.stack([a[0, 0, 0], b[0, 0, 0], c[0, 0, 0]])",
            "y = torch.linalg.multi_dot([a[0], b[0], c[0]])",
            "y = torch.baddbmm(c.mT[:, :, :1], a, b[:, :, :1])",
            "y = torch.addcmul(a, a.bfloat16(), a)",
            "y = torch.block_diag(a[0], b[0])",
            "y = torch.cartesian_prod(a[0, 0], b[0, 0])",
            "y = torch.chain_matmul(a[0], b[0], c[0])",
            "y = torch.tensordot(a, b, [[2], [1]])",
            "y = a.where(a > 0, a.bfloat16())",
            "y = F.bilinear(a[0, :1], c[0, :1], b.new_ones(2, a.shape[2], c.shape[2]))",
            "y = torch.dstack([a[0, 0], b[0, 0][:1].expand(a.shape[2])])",
        ]
    )
    return f"{made}with torch.autocast('cuda', dtype=torch.bfloat16):\n    {call}"


def refused(rng: random.Random) -> str:
    """Operators whose kernels take floating point numbers alone, or two tensors of one dtype."""
    rows, columns = rng.randrange(1, 30), rng.randrange(1, 30)
    first, second = rng.choice(ANY), rng.choice(ANY)
    made = f"a = {tensor((rows, columns), first)}; b = {tensor((columns,), second)}; "
    made += f"i = {tensor((columns,), rng.choice(['int64', 'int32', 'float32']))}; "
    return made + rng.choice(
        [
            "y = F.gelu(a)", "y = F.silu(a)", "y = F.softmax(a, 1)", "y = F.log_softmax(a, 0)", "y = torch.mv(a, b)",
            "y = torch.multinomial(a, 1)", "b.put_(i.long() * 0, a[0])",
            "g = a.new_zeros(1, 3, 2, 2).to(b.dtype); y = F.grid_sample(a[None, None], g, align_corners=False)",
        ]
    )  # fmt: skip


def draw(rng: random.Random) -> str:
    """One snippet."""
    return rng.choice([where, where, put, put, norm, loss, distance, cast, cast, refused, refused])(rng)
