"""Casts to 8-bit floats and matmuls of them, at random: `python -m tools.oracle.rules float8`."""

from __future__ import annotations

import random

COUNT = 110  # snippets a GPU

SIZES = (16, 32, 48, 64, 256, 1024)
OUTPUTS = ("bfloat16", "bfloat16", "float16", "float32")


def _randn(rows: int, columns: int, dtype: str) -> str:
    return f"torch.randn({rows}, {columns}, device='cuda', dtype=torch.{dtype})"


def _float8(rng: random.Random, rows: int, columns: int, dtype: str = "float8_e4m3fn") -> str:
    return f"{_randn(rows, columns, rng.choice(('bfloat16', 'float32')))}.to(torch.{dtype})"


def product(rng: random.Random) -> str:
    """Draws a matmul of matrices in 8 bits, with scales of the whole or of rows, sometimes with a bias or an output."""
    m, k, n = (rng.choice(SIZES) for _ in "mkn")
    kind = rng.choice(("whole", "whole", "rows"))
    left, right = rng.choice((("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3fn", "e5m2")))
    left, right = ("e4m3fn", "e4m3fn") if kind == "rows" else (left, right)
    output = "bfloat16" if kind == "rows" else rng.choice(OUTPUTS)
    lines = [
        f"a = {_float8(rng, m, k, f'float8_{left}')}",
        f"b = {_float8(rng, n, k, f'float8_{right}')}.t()",
    ]
    sizes = ("()", "()") if kind == "whole" else (f"({m}, 1)", f"(1, {n})")
    lines += [f"{name} = torch.ones({size}, device='cuda')" for name, size in zip(("sa", "sb"), sizes, strict=True)]
    more = f", out_dtype=torch.{output}"
    more += rng.choice(("", ", use_fast_accum=True"))
    if output != "float32" and rng.random() < 0.3:
        lines.append(f"bias = torch.ones({n}, device='cuda', dtype=torch.{output})")
        more += ", bias=bias"
    if rng.random() < 0.3:
        shape = rng.choice((f"{m}, {n}", "0"))
        lines.append(f"out = torch.empty({shape}, device='cuda', dtype=torch.{output})")
        more += ", out=out"
    lines.append(f"y = torch._scaled_mm(a, b, scale_a=sa, scale_b=sb{more})")
    return "\n".join(lines)


def cast(rng: random.Random) -> str:
    """Draws a cast to 8 bits and back, by scaling and clamping as libraries for training do."""
    rows, columns = rng.choice(SIZES), rng.choice(SIZES)
    kind, dtype = rng.choice(("float8_e4m3fn", "float8_e5m2")), rng.choice(("bfloat16", "float32", "float16"))
    transposed = rng.choice(("", ".t()"))
    return "\n".join(
        [
            f"x = {_randn(rows, columns, dtype)}{transposed}",
            "scale = (448 / x.abs().max().to(torch.float64).clamp(min=1e-12)).to(torch.float32)",
            "scaled = x.to(torch.float32) * scale",
            f"y = scaled.clamp(-448, 448).to(torch.{kind})",
            "del scaled",
            f"z = {rng.choice(('y.contiguous()', 'y.t().contiguous().t()', 'y.clone()', 'y.reshape(-1)'))}",
            f"back = y.to(torch.{dtype}) * scale.reciprocal()",
        ]
    )


def layers(rng: random.Random) -> str:
    """Draws a training step of layers whose matmuls are in 8 bits."""
    sizes = [rng.choice(SIZES) for _ in range(3)]
    bias, rows = rng.choice(("True", "False")), rng.choice((16, 128, 512))
    autocast = rng.random() < 0.3
    dtype = "float32" if autocast else "bfloat16"
    make = f"nn.Linear({{}}, {{}}, bias={bias}, device='cuda', dtype=torch.{dtype})"
    around = "torch.autocast('cuda', dtype=torch.bfloat16)" if autocast else "contextlib.nullcontext()"
    return "\n".join(
        [
            "import contextlib",
            "from simgpu.fitting import float8",
            f"net = nn.Sequential({make.format(sizes[0], sizes[1])}, nn.GELU(), {make.format(sizes[1], sizes[2])})",
            "net = float8.convert(net, 'meta')",
            f"x = torch.randn(2, {rows}, {sizes[0]}, device='cuda', dtype=torch.{dtype}, requires_grad=True)",
            "for _ in range(2):",
            f"    with {around}:",
            "        y = net(x)",
            "    y.float().sum().backward()",
            "    net.zero_grad()",
        ]
    )


DRAWINGS = (product, product, cast, layers)
