"""Random attention, autocast, dropout, encoder layers: `python -m tools.oracle.rules attention --help`."""

from __future__ import annotations

import random
import re

COUNT = 200  # snippets a GPU

HALVES = ("float16", "bfloat16")
BACKENDS = ("FLASH", "EFFICIENT", "CUDNN", "MATH")
LAYOUTS = {
    "contiguous": "torch.randn({b}, {h}, {n}, {d}, dtype={dtype}, device='cuda', requires_grad=True)",
    "transposed": "torch.randn({b}, {n}, {h}, {d}, dtype={dtype}, device='cuda', requires_grad=True).transpose(1, 2)",
    "packed": (
        "torch.randn({b}, {n}, {h}, 3, {d}, dtype={dtype}, device='cuda', requires_grad=True)[:, :, :, 1]"
        ".transpose(1, 2)"
    ),
}


def attention(rng: random.Random) -> str:
    """One call, its backward, and the same without gradients; on PyTorch's own choice of backend, or on a given one."""
    backend = rng.choice((None, None, *BACKENDS))
    dtype = rng.choice(HALVES if backend in ("FLASH", "CUDNN") else (*HALVES, "float32"))
    batch, heads = rng.choice((1, 2, 3)), rng.choice((2, 4, 8))
    length = rng.choice((1, 2, 17, 64, 128, 200, 512, 1000))
    keys = length if rng.random() < 0.6 else rng.choice((1, 16, 100, 2048))
    size = rng.choice((8, 32, 33, 64, 64, 72, 80, 100, 104, 128, 160, 192, 256, 264))
    value_size = size if rng.random() < 0.85 else rng.choice((64, 128, 160))
    grouped = rng.random() < 0.25
    key_heads = rng.choice((1, 2)) if grouped else heads
    dropout = rng.choice((0, 0, 0, 0.1, 0.125))
    causal = rng.random() < 0.25
    layout = LAYOUTS[rng.choice(sorted(LAYOUTS))]

    def tensor(heads, length, size):
        return layout.format(b=batch, h=heads, n=length, d=size, dtype=f"torch.{dtype}")

    lines = [
        f"q = {tensor(heads, length, size)}",
        f"k = {tensor(key_heads, keys, size)}",
        f"v = {tensor(key_heads, keys, value_size)}",
        f"mask = {'None' if causal else mask(rng, batch, heads, length, keys, dtype)}",
        f"options = dict(attn_mask=mask, dropout_p={dropout}, is_causal={causal}, enable_gqa={grouped})",
        rng.choice(("", "", "", "options['scale'] = 0.3", "options['scale'] = -0.3")),
        "y = F.scaled_dot_product_attention(q, k, v, **options)",
        rng.choice(("y.sum().backward()", "y.backward(torch.randn_like(y))")),
        "del y",
        "with torch.no_grad(): F.scaled_dot_product_attention(q, k, v, **options)",
    ]
    if backend is None:
        return "\n".join(filter(None, lines))
    chosen = f"torch.nn.attention.SDPBackend.{backend}{'' if backend == 'MATH' else '_ATTENTION'}"
    inside = "\n".join(f"    {line}" for line in lines if line)
    return f"import torch.nn.attention\nwith torch.nn.attention.sdpa_kernel({chosen}):\n{inside}"


def choice(rng: random.Random) -> str:
    """Which backend PyTorch chooses, told by the size of an allocation; shapes that fit none of them included."""
    dtype = rng.choice((*HALVES, *HALVES, "float32", "float64"))
    batch, heads, length = rng.choice((1, 2)), rng.choice((1, 4, 6)), rng.choice((0, 1, 2, 64, 100, 128))
    keys = length if rng.random() < 0.7 else rng.choice((0, 1, 3, 64, 130))
    size = rng.choice((1, 4, 8, 33, 36, 64, 64, 72, 96, 100, 128, 136, 160, 192, 200, 224, 240, 256, 264, 512))
    value_size = size if rng.random() < 0.85 else rng.choice((64, 128, 192, 36))
    key_heads = heads if rng.random() < 0.8 else rng.choice((1, 2, 3))
    value_heads = key_heads if rng.random() < 0.9 else rng.choice((1, 2))
    ways = (
        "torch.empty({b}, {h}, {n}, {d}, **o)",
        "torch.empty({b}, {n}, {h}, {d}, **o).transpose(1, 2)",
        "torch.empty({b}, {h}, {d}, {n}, **o).mT",
        "torch.empty({b}, {h}, {n}, 3 * {d} + 1, **o)[..., 1 : {d} + 1]",
    )
    way = rng.choice((*ways, ways[0], ways[1]))
    mask = "None"
    if rng.random() < 0.4:
        shape = rng.choice(
            ((length, keys), (1, keys), (batch, 1, length, keys), (batch, heads, length, keys), (length, 1))
        )
        kind = rng.choice(("torch.bool", "torch.float32", f"torch.{dtype}", f"torch.{dtype}, requires_grad=True"))
        mask = f"torch.empty({shape}, device='cuda', dtype={kind})"
    causal = mask == "None" and rng.random() < 0.3
    return "\n".join(
        [
            f"o = dict(dtype=torch.{dtype}, device='cuda', requires_grad={rng.random() < 0.5})",
            f"q = {way.format(b=batch, h=heads, n=length, d=size)}",
            f"k = {way.format(b=batch, h=key_heads, n=keys, d=size)}",
            f"v = {way.format(b=batch, h=value_heads, n=keys, d=value_size)}",
            f"chosen = torch._fused_sdp_choice(q, k, v, {mask}, {rng.choice((0, 0, 0.1, 0.25, 0.5))}, {causal}, "
            f"enable_gqa={rng.random() < 0.4})",
            "torch.empty(1 + chosen, dtype=torch.uint8, device='cuda')",
        ]
    )


def mask(rng: random.Random, batch: int, heads: int, length: int, keys: int, dtype: str) -> str:
    """Source of a mask, or "None"."""
    shapes = (
        (length, keys),
        (batch, 1, length, keys),
        (batch, heads, length, keys),
        (1, 1, 1, keys),
        (batch, 1, 1, keys),
    )
    kind = rng.choice((None, None, "torch.bool", f"torch.{dtype}", f"torch.{dtype}, requires_grad=True"))
    return "None" if kind is None else f"torch.ones({rng.choice(shapes)}, device='cuda', dtype={kind})"


MODULES = (
    "nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.LayerNorm(64))",
    "nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.RMSNorm(96), nn.Linear(96, 64, bias=False), nn.Softmax(-1))",
    "nn.Sequential(nn.Linear(64, 64), nn.Mish(), nn.AlphaDropout(0.2), nn.LogSoftmax(-1))",
    "nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)",
    "nn.TransformerEncoderLayer(64, 2, 96, batch_first=True, norm_first=True, activation='gelu')",
    "nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0)",
)


def module(rng: random.Random) -> str:
    """A small module in train or eval mode, under autocast or not, one step or without gradients."""
    autocast = rng.choice((None, None, "float16", "bfloat16"))
    dtype = "float32" if autocast or rng.random() < 0.5 else rng.choice(HALVES)
    training = rng.random() < 0.6
    call = "y = m(x)"
    if autocast:
        call = f"with torch.autocast('cuda', dtype=torch.{autocast}, cache_enabled=False): y = m(x)"
    lines = [
        f"m = {rng.choice(MODULES)}.to('cuda', torch.{dtype}).{'train' if training else 'eval'}()",
        f"x = torch.randn({rng.choice((1, 3, 8))}, {rng.choice((5, 40, 130))}, 64, device='cuda', dtype=torch.{dtype})",
    ]
    if training or rng.random() < 0.3:
        return "\n".join([*lines, call, "y.sum().backward()"])
    guard = rng.choice(("torch.no_grad()", "torch.inference_mode()"))
    return "\n".join([*lines, f"with {guard}:", f"    {call}"])


FUNCTIONS = (  # under autocast, by policy: lower precision, fp32, fp32 result, widest, and what is on no list
    "torch.matmul(a, b.mT)",
    "torch.einsum('...ij,...kj->...ik', a, b)",
    "F.linear(a, b[0])",
    "torch.baddbmm(torch.zeros(3, 20, 20, device='cuda'), a, b.mT)",
    "torch.chain_matmul(a[0], b[0].T)",
    "torch.exp(a)",
    "a.rsqrt()",
    "a ** 2",
    "2 ** a",
    "F.softplus(a)",
    "torch.logsumexp(a, -1)",
    "F.layer_norm(a, (20,))",
    "F.mse_loss(a, b)",
    "F.cosine_similarity(a, b, -1)",
    "F.softmax(a, -1)",
    "F.log_softmax(a, 0, dtype=torch.float64)",
    "a.sum()",
    "a.sum(1)",
    "torch.cumsum(a, 1)",
    "torch.linalg.vector_norm(a, dim=1)",
    "torch.norm(a, 2, 1)",
    "torch.addcmul(a, a, b)",
    "torch.tensordot(a, b, 3)",
    "torch.dot(a[0, 0], b[0, 0].to(a.dtype))",
    "torch.bilinear(a[0], b[0], torch.randn(4, 20, 20, device='cuda'), None)",
    "a + b",
    "a * 2",
    "F.relu(a)",
    "F.gelu(a)",
    "torch.cat([a, b])",
    "a.mean()",
    "F.binary_cross_entropy(a.sigmoid().float(), torch.ones_like(a).float())",
    "F.binary_cross_entropy_with_logits(a, torch.ones_like(a))",
)


def function(rng: random.Random) -> str:
    """One operator under autocast, on operands of two dtypes, and its backward."""
    code = rng.choice(FUNCTIONS)
    shape = "3, 20, 20, device='cuda', requires_grad=True"
    lines = [
        f"{name} = torch.randn({shape}, dtype=torch.{rng.choice(('float32', *HALVES))})"
        for name in ("ab" if "b" in re.findall(r"\b[ab]\b", code) else "a")
    ]
    enabled = rng.random() < 0.9
    return "\n".join(
        [
            *lines,
            f"with torch.autocast('cuda', dtype=torch.{rng.choice(HALVES)}, enabled={enabled}):",
            f"    y = {code}",
            "    torch.empty(y.element_size(), dtype=torch.uint8, device='cuda')  # tells the dtype",
            "y.sum().backward()",
            "del y",
        ]
    )


def draw(rng: random.Random) -> str:
    return rng.choice((attention, attention, choice, module, function))(rng)
