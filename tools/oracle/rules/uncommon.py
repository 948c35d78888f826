"""Random calls as few programs make them: masks of a wrong shape, tensors that lie as few do.

`python -m tools.oracle.rules uncommon --help`
"""

from __future__ import annotations

import random

COUNT = 240  # snippets a GPU


def masks(rng: random.Random) -> str:
    """A mask with values, of the right shape or of another, that reads or writes."""
    shape = rng.choice(("3,", "6, 6", "7,", "6, 7", "6,"))
    place = rng.choice(("device='cuda', ", "device='cuda', ", ""))
    kind = rng.choice(("bool", "bool", "bool", "uint8"))
    made = f"x = torch.zeros(6, 7, device='cuda')\nm = torch.zeros(({shape}), {place}dtype=torch.{kind})\n"
    made += "i = torch.zeros(3, device='cuda', dtype=torch.int64)\n"
    one = rng.choice(("1.0", "torch.ones(())", "torch.ones((), device='cuda')"))
    uses = (
        "tell(x[m])", "tell(x[:, m])", "tell(x[m, m])", "tell(x[m, i])", "tell(x[i, m])", f"x[m] = {one}",
        f"x[m] = {one}", f"x[:, m] = {one}", "x.index_put_((m,), torch.ones(()), accumulate=True)",
    )  # fmt: skip
    return made + rng.choice(uses)


CHANNELS = (
    "torch.zeros(3, 4, 5, 9{}, device='cuda')[..., 1:-2]",
    "torch.zeros(600, 4, 50, 90{}, device='cuda')[..., 1:-2]",
    "torch.zeros(3, 4, 5, 6{}, device='cuda')",
    "torch.zeros(3, 5, 6, 4{}, device='cuda').permute(0, 3, 1, 2)",
    "torch.zeros(4, 3, 5, 6{}, device='cuda').transpose(0, 1)",
    "torch.zeros(3, 8, 5, 6{}, device='cuda')[:, ::2]",
    "torch.zeros(3, 1, 4, 8{}, device='cuda').expand(3, 4, 4, 8)",
    "torch.zeros(1, 4, 1, 8{}, device='cuda')[..., ::2]",
    "torch.zeros(3, 4, 9{}, device='cuda')[..., 1:-2]",
    "torch.zeros(4, 6000, 500{}, device='cuda').transpose(0, 1)",
    "torch.zeros(6, 4{}, device='cuda')[::2]",
    "torch.zeros(4, 60000{}, device='cuda').t()",
    "torch.zeros(3, 4, 2, 5, 9{}, device='cuda')[..., 1:-2]",
    "torch.zeros(8, 4, 20, 50, 70{}, device='cuda').to(memory_format=torch.channels_last_3d)",
)


def of_channels(rng: random.Random) -> str:
    """Batch norm of four channels without cuDNN, of a tensor that need not be dense."""
    x = rng.choice(CHANNELS).format(rng.choice(("", "", ", dtype=torch.half", ", dtype=torch.bfloat16")))
    given = rng.choice(("None, None", "None, None", "o, None", "None, o", "o, o", "w, None", "w, w", "w, o", "o, w"))
    running = rng.choice(("None, None, {}, training=True", "z, o, {}, training=True", "z, o, {}"))
    grad = rng.choice(
        (
            "torch.ones_like(y)",
            "o[0].expand(y.shape)",
            "torch.ones(y.shape[::-1], device='cuda').permute(*range(y.dim())[::-1])",
        )
    )
    if "600" in x or "6000" in x:
        grad = "torch.ones_like(y)"
    return "\n".join(
        [
            f"torch.backends.cudnn.enabled = False\nx = {x}",
            "z, o = torch.zeros(4, device='cuda'), torch.ones(4, device='cuda')\nw = o.clone().requires_grad_()",
            rng.choice(("tell(torch.batch_norm_stats(x, 1e-5))", "x.requires_grad_()", "x.requires_grad_()")),
            f"y = F.batch_norm(x, {running.format(given)})\ntell(y)",
            f"y.backward({grad}) if y.requires_grad else None\ntell(w.grad, x.grad if x.is_leaf else None)",
        ]
    )


def of_five(rng: random.Random) -> str:
    """Batch norm for five channels of a tensor of four, with cuDNN and without."""
    kind = rng.choice(("half", "float32", "float32"))
    options = f"affine={rng.random() < 0.7}, track_running_stats={rng.random() < 0.7}"
    return (
        f"torch.backends.cudnn.enabled = {rng.random() < 0.5}\n"
        f"x = torch.zeros(3, 4, 5, 6, device='cuda', dtype=torch.{kind})\n"
        f"m = nn.BatchNorm2d(5, {options}).cuda().train({rng.random() < 0.6})\nm(x)"
    )


ROWS = (
    "torch.zeros(5000, 1, device='cuda').t()",
    "torch.zeros(10000, device='cuda')[::2]",
    "torch.zeros(5000, 2, device='cuda').t()",
    "torch.zeros(5000, 1, 1, device='cuda').permute(1, 2, 0)",
    "torch.zeros(1, 5000, device='cuda').t()",
    "torch.zeros(2, 10000, device='cuda')[:, ::2]",
    "torch.zeros(1, device='cuda').expand(5000)",
    "torch.zeros(4000, 1, device='cuda').t()",
    "torch.zeros(5000, device='cuda').as_strided((1, 5000), (7, 1))",
    "torch.zeros(2, 1, 5000, device='cuda').transpose(1, 2)",
)


def in_order(rng: random.Random) -> str:
    """Sorting of rows that lie in steps, or among dims of size 1."""
    calls = (
        "x.sort()", "x.sort()", "x.argsort()", "x.sort(0)", "x.sort(0, stable=True)", "x.quantile(0.3)", "x.median()",
        "x.topk(min(5, x.shape[-1]))", "torch.msort(x)",
    )  # fmt: skip
    return f"x = {rng.choice(ROWS)}\ny = {rng.choice(calls)}\ntell(y)"


def noisy(rng: random.Random) -> str:
    """rrelu of what is not contiguous, or is."""
    layouts = "6, 4{}).t()", "6, 4{})", "6, 8{})[:, ::2]", "1, 4, 8{})[..., ::2]", "5, 1{}).t()", "0, 4{}).t()"
    x = "x = torch.zeros(" + rng.choice(layouts).format(", device='cuda'")
    options = rng.choice(("", ", training=True", ", training=True", ", training=True, inplace=True"))
    backward = rng.choice(("y.sum().backward()", "y.backward(torch.ones_like(y))"))
    return f"{x}.requires_grad_()\ny = F.rrelu(x * 1{options})\n{backward}\ntell(y, x.grad)"


def apart(rng: random.Random) -> str:
    """Indices apart from each other, beside new dims, and the gradient, which is added where they say."""
    made = rng.choice(
        ("6, 7, 8{})", "7, 6, 8{}).transpose(0, 1)", "8, 7, 6{}).permute(2, 1, 0)", "6, 7, 16{})[..., ::2]")
    )
    forms = (
        "x[i, None, i]", "x[None, i, None, j]", "x[i, :, j]", "x[:, i, None, j]", "x[i, None]", "x[i, j, None, i]",
        "x[:, i, :, None]", "x[None, i, j, None, i]", "x[i, None, :, j]", "x[:, i, None, :, None]",
    )  # fmt: skip
    form = rng.choice(forms)
    lines = [
        "i, j = torch.zeros(3, device='cuda', dtype=torch.int64), torch.zeros(3, device='cuda', dtype=torch.int64)",
        "x = torch.zeros(" + made.format(", device='cuda'"),
    ]
    if rng.random() < 0.3:
        put = "x.index_put_((i, None, j), torch.ones((), device='cuda'), accumulate=True)"
        return "\n".join([*lines, put, f"{form} = 1.0\ntell(x)"])
    return "\n".join([*lines, f"x.requires_grad_()\ny = {form}\ny.backward(torch.ones_like(y))\ntell(y, x.grad)"])


def of_nothing(rng: random.Random) -> str:
    """The median of no elements."""
    kind = rng.choice(("uint8", "int64", "cfloat", "float32", "half", "bool", "double", "bfloat16"))
    shape, call = rng.choice(("0", "(0, 3)")), rng.choice(("median", "nanmedian"))
    return f"x = torch.zeros({shape}, dtype=torch.{kind}, device='cuda')\ny = x.{call}()\ntell(y)"


def of_the_host(rng: random.Random) -> str:
    """Indices that were copied to the host, or are the host's, alone and beside others."""
    made = (
        "torch.tensor([0, 2, 1], device='cuda').cpu()", "torch.zeros(3, device='cuda', dtype=torch.int32).cpu()",
        "torch.zeros(2, 3, device='cuda', dtype=torch.int64).cpu()", "torch.zeros(3, dtype=torch.int32)",
        "torch.zeros(6, dtype=torch.int64)[::2]", "torch.zeros(1, dtype=torch.int64).expand(3)",
        "torch.zeros(6, device='cuda').argmax().expand(3).to('cpu')",
    )  # fmt: skip
    use = rng.choice(("x[i]", "x[i, i]", "x[j, i]", "x[i, j]", "x[:, i]"))
    lines = [
        "x = torch.zeros(6, 7, device='cuda')",
        f"i = {rng.choice(made)}\nj = torch.zeros(i.shape, device='cuda', dtype=torch.int64)",
    ]
    if rng.random() < 0.3:
        one = rng.choice(("1.0", "torch.ones((), device='cuda')", "torch.ones((), device='cuda').cpu()"))
        return "\n".join([*lines, f"{use} = {one}\nx.index_put_((i,), torch.ones((), device='cuda'), accumulate=True)"])
    return "\n".join([*lines, f"x.requires_grad_()\ny = {use}\ny.sum().backward()\ntell(y, x.grad)"])


def ignored(rng: random.Random) -> str:
    """Cross entropy with weights and smoothed labels, of targets that are all ignored."""
    scores, targets = rng.choice((("5, 4", "5,"), ("5, 4, 3", "5, 3"), ("4,", "")))
    reduction = rng.choice(("mean", "mean", "sum", "none"))
    return (
        f"x = torch.zeros(({scores}), device='cuda', requires_grad=True)\n"
        f"t = torch.zeros(({targets}), dtype=torch.int64, device='cuda')\nw = torch.ones(4, device='cuda')\n"
        f"y = F.cross_entropy(x, t, w, label_smoothing=0.1, ignore_index=0, reduction={reduction!r})\n"
        "tell(y)\ny.sum().backward()\ntell(x.grad)"
    )


def fake_quantized(rng: random.Random) -> str:
    """Fake quantization by numbers, by tensors, by channel, and of what is observed first."""
    of_one = "torch.ones(1, device='cuda')"
    integer = "torch.zeros({}, device='cuda', dtype=torch.int32)"
    on = "torch.ones(1, device='cuda', dtype=torch.int64)"
    calls = (
        "torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)",
        f"torch.fake_quantize_per_tensor_affine(x, {of_one}, {integer.format(1)}, 0, 255)",
        f"torch.fake_quantize_per_channel_affine(x, torch.ones(4, device='cuda'), {integer.format(4)}, 0, 0, 255)",
        f"torch.fused_moving_avg_obs_fake_quant(x, {on}, {on}, {of_one}, {of_one}, {of_one}, {integer.format(1)}, "
        "0.01, 0, 255, 0)",
    )
    layouts = "4, 6{})", "6, 4{}).t()", "4, 12{})[:, ::2]", "4, 3, 2, 2{}).to(memory_format=torch.channels_last)"
    x = "x = torch.zeros(" + rng.choice(layouts).format(", device='cuda'")
    return f"{x}.requires_grad_()\ny = {rng.choice(calls)}\ny.sum().backward()\ntell(y, x.grad)"


def drawn(rng: random.Random) -> str:
    """Poisson's numbers of rates that lie in any way."""
    layouts = "6, 4{}).t()", "1, 8, 4{}).transpose(1, 2)", "1, 4, 8{})[..., ::2]", "3, 1{}).expand(3, 4)"
    return f"x = torch.zeros({rng.choice(layouts)}\ntell(torch.poisson(x))".format(", device='cuda'")


DRAWINGS = [
    masks, masks, of_channels, of_channels, of_channels, of_channels, of_five, in_order, in_order, in_order, noisy,
    noisy, apart, apart, of_nothing, of_the_host, of_the_host, of_the_host, ignored, fake_quantized, fake_quantized,
    drawn,
]  # fmt: skip
