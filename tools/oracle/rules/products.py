"""Random matrix products, forward and backward, in every layout: `python -m tools.oracle.rules products`."""

from __future__ import annotations

import random

COUNT = 200  # snippets a GPU

DTYPES = ("float32", "float32", "float16", "bfloat16", "float64", "complex64")
SIZES = (1, 1, 2, 3, 5, 8, 16, 33, 64, 100, 257, 512)
EINSUMS = (
    ("ij,jk->ik", "mk", "kn"),
    ("bij,bjk->bik", "bmk", "bkn"),
    ("bid,bjd->bij", "bmk", "bnk"),
    ("bhqd,bhkd->bhqk", "2bmk", "2bnk"),
    ("bqhd,bkhd->bhqk", "2mbk", "2nbk"),
    ("bhqk,bkhd->bqhd", "2bmn", "2nbk"),
    ("i,j->ij", "m", "n"),
    ("ij,ij->i", "mk", "mk"),
    ("bsd,de->bse", "bmk", "kn"),
    ("ijk,k->ij", "bmk", "k"),
    ("ij,kj->", "mk", "nk"),
)
MATMULS = (
    "k kn",
    "mk k",
    "bmk kn",
    "bmk bkn",
    "1mk bkn",
    "2bmk bkn",
    "2bmk 21kn",
    "2bmk k",
    "k bkn",
    "mk bkn",
    "bmk k",
)


def randn(shape, dtype: str) -> str:
    """Source of a fresh tensor."""
    return f"torch.randn({tuple(shape)}, device='cuda', dtype=torch.{dtype})"


def laid_out(rng: random.Random, shape, dtype: str) -> str:
    """Source of a tensor of that shape, contiguous in one of two, else a view of another in some layout."""
    shape = list(shape)
    last = len(shape) - 1
    layout = rng.choice(
        ["plain"] * 4 + ["transposed", "slice", "step", "expand", "scalar", "offset", "rows", "permuted"]
    )
    if not shape:
        layout = "plain"
    if layout == "transposed" and last:
        return randn([*shape[:-2], shape[-1], shape[-2]], dtype) + ".transpose(-1, -2)"
    if layout == "slice":
        return randn([*shape[:-1], shape[-1] + 3], dtype) + f"[..., 1:{shape[-1] + 1}]"
    if layout == "step":
        return randn([*shape[:-1], 2 * shape[-1]], dtype) + "[..., ::2]"
    if layout == "expand" and last:
        base, dim = list(shape), rng.randrange(len(shape))
        base[dim] = 1
        return randn(base, dtype) + f".expand({shape})"
    if layout == "scalar":
        return f"torch.ones((), device='cuda', dtype=torch.{dtype}).expand({shape})"
    if layout == "offset":
        return randn([shape[0] + 1, *shape[1:]], dtype) + "[1:]"
    if layout == "rows" and last:
        return randn([*shape[:-2], 2 * shape[-2], shape[-1]], dtype) + "[..., ::2, :]"
    if layout == "permuted" and last == 2:
        order = rng.sample(range(3), 3)
        base = [0, 0, 0]
        for to, source in enumerate(order):
            base[source] = shape[to]
        return randn(base, dtype) + f".permute({order})"
    return randn(shape, dtype)


class Drawing:
    """The sizes, the dtype and the lines of one snippet."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.dtype = rng.choice(DTYPES)
        self.sizes = {name: rng.choice((0, *SIZES) if rng.random() < 0.15 else SIZES) for name in "mkn"}
        self.sizes["b"] = rng.choice((1, 2, 3, 7))
        self.backward = rng.random() < 0.6
        self.lines = []

    def shape(self, letters: str) -> tuple[int, ...]:
        return tuple(self.sizes[letter] if letter.isalpha() else int(letter) for letter in letters)

    def operand(self, name: str, letters: str, leaf: bool = True) -> None:
        line = f"{name} = {laid_out(self.rng, self.shape(letters), self.dtype)}"
        self.lines.append(line + (f"; {name}.requires_grad_()" if leaf and self.backward else ""))

    def factors(self, a: str, b: str) -> None:
        self.operand("a", a, leaf=self.rng.random() < 0.8)
        self.operand("b", b)

    def scales(self) -> str:
        return self.rng.choice(("", "", "", ", beta=0", ", beta=2", ", alpha=3", ", alpha=0.5, beta=0.5"))

    def with_addend(self, function: str, addends, a: str, b: str) -> None:
        self.operand("c", self.rng.choice(addends))
        self.factors(a, b)
        self.lines.append(f"y = torch.{function}(c, a, b{self.scales()})")

    def matrix_times_vector(self) -> None:
        # CUDA gives an empty matrix's product the addend's shape, unbroadcast, and its backward then fails.
        empty = 0 in (self.sizes["m"], self.sizes["k"])
        self.with_addend("addmv", ("m",) if empty else ("m", "1", ""), "mk", "k")

    def in_place(self) -> None:
        self.backward = False
        self.lines.append(f"y = {randn(self.shape('mn'), self.dtype)}")
        self.factors("mk", "kn")
        self.lines.append(f"y.addmm_(a, b{self.scales()})")

    def into_output(self) -> None:
        self.backward = False
        function = self.rng.choice(("mm", "addmm", "bmm"))
        batch = "b" if function == "bmm" else ""
        *lead, rows, columns = self.shape(batch + "mn")
        outputs = (
            randn((*lead, rows, columns), self.dtype),
            randn((0,), self.dtype),
            randn((*lead, columns, rows), self.dtype) + ".mT",
            randn((*lead, rows, 2 * columns), self.dtype) + "[..., ::2]",
            randn((*lead, rows, columns + 3), self.dtype) + f"[..., 1:{columns + 1}]",
        )
        self.lines.append(f"y = {self.rng.choice(outputs)}")
        self.factors(batch + "mk", batch + "kn")
        if function == "addmm":
            self.operand("c", self.rng.choice(("n", "mn")))
        self.lines.append(f"torch.{function}({'c, ' if function == 'addmm' else ''}a, b, out=y)")

    def activation(self) -> None:
        self.backward = False
        if self.dtype == "complex64":
            self.dtype = "float32"
        self.operand("c", self.rng.choice(("n", "n", "mn", "1n")))
        self.factors("mk", "kn")
        self.lines.append(f"y = torch._addmm_activation(c, a, b, use_gelu={self.rng.random() < 0.5})")

    def to_float(self) -> None:
        self.backward = False
        self.dtype = self.rng.choice(("float16", "bfloat16"))
        function = self.rng.choice(("mm", "bmm"))
        batch = "b" if function == "bmm" else ""
        self.factors(batch + "mk", batch + "kn")
        self.lines.append(f"y = torch.{function}(a, b, out_dtype=torch.float32)")

    def linear(self) -> None:
        self.operand("x", self.rng.choice(("", "m", "m", "bm", "bm", "2bm")) + "k", leaf=self.rng.random() < 0.8)
        self.operand("w", "nk")
        with_bias = self.rng.random() < 0.65
        if with_bias:
            self.operand("c", "n")
        self.lines.append(f"y = F.linear(x, w{', c' if with_bias else ''})")

    def einsum(self) -> None:
        equation, a, b = self.rng.choice(EINSUMS)
        self.factors(a, b)
        self.lines.append(f"y = torch.einsum('{equation}', a, b)")

    def several(self) -> None:
        if self.rng.random() < 0.5:
            self.factors("bmk", "kbn")
            self.lines.append("y = torch.tensordot(a, b, dims=([2, 0], [0, 1]))")
        else:
            self.factors("mk", "kn")
            self.operand("c", "nm")
            self.lines.append("y = torch.linalg.multi_dot([a, b, c])")

    def bilinear(self) -> None:
        self.factors("bm", "bn")
        self.operand("w", "3mn")
        self.lines.append("y = F.bilinear(a, b, w)")

    def simple(self, function: str, a: str, b: str) -> None:
        self.factors(a, b)
        self.lines.append(f"y = torch.{function}(a, b)")

    def snippet(self) -> str:
        draw = self.rng.choice(
            [
                lambda: self.simple("mm", "mk", "kn"),
                lambda: self.simple("bmm", "bmk", "bkn"),
                lambda: self.simple("mv", "mk", "k"),
                lambda: self.simple(self.rng.choice(("dot", "vdot")), "k", "k"),
                lambda: self.simple("outer", "m", "n"),
                lambda: self.simple("matmul", *self.rng.choice(MATMULS).split()),
                lambda: self.simple("matmul", *self.rng.choice(MATMULS).split()),
                lambda: self.with_addend("addmm", ("n", "n", "n", "mn", "1n", "m1", "", "1"), "mk", "kn"),
                lambda: self.with_addend("baddbmm", ("bmn", "mn", "1mn", "n", "b1n"), "bmk", "bkn"),
                lambda: self.with_addend("addbmm", ("mn",), "bmk", "bkn"),
                self.matrix_times_vector,
                self.linear,
                self.linear,
                self.linear,
                self.einsum,
                self.into_output,
                self.in_place,
                self.activation,
                self.to_float,
                self.several,
                self.bilinear,
            ]
        )
        draw()
        if self.backward:
            ends = ["y.sum().backward()", "y.backward(torch.randn_like(y))", "(y * 2).sum().backward()"]
            self.lines.append(
                "torch.view_as_real(y).sum().backward()" if self.dtype == "complex64" else self.rng.choice(ends)
            )
        return "\n".join(self.lines)


def draw(rng: random.Random) -> str:
    return Drawing(rng).snippet()
