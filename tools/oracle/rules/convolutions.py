"""Random convolutions and poolings, forward and backward: `python -m tools.oracle.rules convolutions --help`.

With cuDNN on, the stub library asks for no workspace: what is compared is PyTorch's part.
"""

from __future__ import annotations

import random

COUNT = 200  # snippets a GPU

DTYPES = ("float32", "float32", "float16", "bfloat16", "float64")
LAYOUTS = {2: "torch.channels_last", 3: "torch.channels_last_3d"}


def tensor(rng: random.Random, name: str, shape, dtype: str, layout: str | None, leaf: bool) -> str:
    """A line that makes an operand in one of several layouts."""
    source = f"torch.randn({tuple(shape)}, device='cuda', dtype=torch.{dtype})"
    kind = rng.random()
    if layout is not None and kind < 0.6:
        source += f".to(memory_format={layout})"
    elif kind > 0.93:
        source = f"torch.randn({(*shape[:-1], 2 * shape[-1])}, device='cuda', dtype=torch.{dtype})[..., ::2]"
    elif kind > 0.88:
        source = f"torch.randn({(shape[1], shape[0], *shape[2:])}, device='cuda', dtype=torch.{dtype}).transpose(0, 1)"
    return f"{name} = {source}" + (f"; {name}.requires_grad_()" if leaf else "")


def ending(rng: random.Random, backward: bool, layout: str | None) -> list[str]:
    """How the backward is begun: with an expanded gradient, a dense one, or one in channels_last; or not at all."""
    if not backward:
        return []
    ends = ["y.sum().backward()", "y.backward(torch.randn_like(y))", "(y * y).sum().backward()"]
    if layout is not None:
        ends.append(f"y.backward(torch.randn(y.shape, device='cuda', dtype=y.dtype).to(memory_format={layout}))")
    return [rng.choice(ends)]


def convolution(rng: random.Random) -> str:
    """A call of F.conv1d ... conv_transpose3d."""
    dims = rng.choice((1, 2, 2, 2, 2, 3))
    transposed = rng.random() < 0.3
    dtype = rng.choice(DTYPES)
    layout = LAYOUTS.get(dims) if rng.random() < 0.35 else None
    groups = rng.choice((1, 1, 1, 2, 4))
    inward, outward = rng.choice((1, 2, 3, 8)), rng.choice((1, 2, 3, 8))
    channels, filters = groups * inward, groups * outward
    if rng.random() < 0.2 and not transposed:  # depthwise
        channels = groups = rng.choice((2, 8, 32, 48))
        inward, filters = 1, channels * rng.choice((1, 2))
    batch = rng.choice((1, 2, 3, 5)) if rng.random() < 0.95 else 0
    size = [rng.randrange(5, (40, 24, 9)[dims - 1]) for _ in range(dims)]
    kernel = [rng.choice((1, 1, 2, 3, 3, 5)) for _ in range(dims)]
    if rng.random() < 0.4:
        kernel = kernel[:1] * dims
    stride = rng.choice((1, 1, 2, 3))
    padding = rng.choice((0, 0, 1, 2))
    dilation = 2 if rng.random() < 0.2 and max(kernel) <= 3 else 1
    options = [f"stride={stride}", f"padding={padding}", f"dilation={dilation}", f"groups={groups}"]
    if transposed and stride > 1 and rng.random() < 0.4:
        options.append(f"output_padding={stride - 1}")
    weight = (channels, outward, *kernel) if transposed else (filters, inward, *kernel)
    backward = rng.random() < 0.75
    with_bias = rng.random() < 0.6
    lines = [f"torch.backends.cudnn.enabled = {rng.random() < 0.5}"]
    lines.append(tensor(rng, "x", (batch, channels, *size), dtype, layout, backward and rng.random() < 0.75))
    lines.append(tensor(rng, "w", weight, dtype, layout, backward))
    if with_bias:
        lines.append(f"b = torch.randn({filters}, device='cuda', dtype=torch.{dtype}, requires_grad={backward})")
    call = f"F.conv{'_transpose' if transposed else ''}{dims}d"
    lines.append(f"y = {call}(x, w, {'b' if with_bias else 'None'}, {', '.join(options)})")
    return "\n".join([*lines, *ending(rng, backward, layout), "torch.backends.cudnn.enabled = True"])


def pooling(rng: random.Random) -> str:
    """A call of a pooling, an upsampling or a padding."""
    dims = rng.choice((1, 2, 2, 3))
    dtype = rng.choice(DTYPES)
    layout = LAYOUTS.get(dims) if rng.random() < 0.35 else None
    shape = [rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 4, 5, 8, 16)), *(rng.randrange(6, 20) for _ in range(dims))]
    modes = ["nearest", "nearest-exact", *({1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[dims])]
    antialias = ", antialias=True" if dims == 2 and rng.random() < 0.3 and dtype in ("float32", "float64") else ""
    mode = rng.choice(modes[2:] if antialias else modes)
    call = rng.choice(
        (
            f"F.max_pool{dims}d(x, {rng.choice((2, 3))}, stride={rng.choice((None, 1, 2))}, padding=1)",
            f"F.max_pool{dims}d(x, 2, return_indices=True)[0]",
            f"F.avg_pool{dims}d(x, {rng.choice((2, 3))}, stride={rng.choice((None, 1, 2))})",
            f"F.adaptive_avg_pool{dims}d(x, {rng.choice((1, 2, 5))})",
            f"F.adaptive_max_pool{dims}d(x, {rng.choice((1, 2, 5))})",
            f"F.interpolate(x, scale_factor=2, mode='{mode}'{antialias})",
            f"F.pad(x, {(1, 2) * dims}, mode='{rng.choice(('constant', 'replicate', 'reflect', 'circular'))}')",
        )
    )
    backward = rng.random() < 0.75
    lines = [tensor(rng, "x", shape, dtype, layout, backward), f"y = {call}"]
    return "\n".join([*lines, *ending(rng, backward, layout)])


def draw(rng: random.Random) -> str:
    return convolution(rng) if rng.random() < 0.75 else pooling(rng)
