"""Scaled dot product attention: what CUDA chooses by dtype, mask, dropout and size, and what that keeps."""

from functools import partial
from itertools import product

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def sdpa(stage, dtype, batch=2, heads=8, length=512, size=64, mask=None, transposed=True, **options):
    """One call forward and backward, then one without gradients.

    `mask` is None, "bool" or "float"; `transposed` gives the memory order of a projection that was split into
    heads.
    """

    def tensor(heads=heads):
        if transposed:
            return torch.randn(batch, length, heads, size, dtype=dtype, device="cuda", requires_grad=True).transpose(
                1, 2
            )
        return torch.randn(batch, heads, length, size, dtype=dtype, device="cuda", requires_grad=True)

    query, key, value = (tensor() for _ in range(3))
    attn_mask = None
    if mask == "bool":
        attn_mask = torch.ones(batch, 1, length, length, dtype=torch.bool, device="cuda")
    elif mask == "float":
        attn_mask = torch.zeros(batch, 1, length, length, dtype=dtype, device="cuda")
    stage("inputs")
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)
    stage("forward")
    output.sum().backward()
    del output
    stage("backward")
    with torch.no_grad():
        F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, **options)
    stage("inference")


def forced(stage, backend, dtype):
    """The same under `sdpa_kernel(backend)`."""
    with sdpa_kernel(backend):
        sdpa(stage, dtype)


CASES = {
    "plain": {},
    "contiguous": {"transposed": False},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.1},
    "bool_mask": {"mask": "bool"},
    "float_mask": {"mask": "float"},
    "ragged_mask": {"mask": "bool", "length": 500},
    "size_80": {"size": 80},
    "size_100": {"size": 100},
    "size_128_long": {"size": 128, "length": 2048, "batch": 1},
    "size_256": {"size": 256},
}
WORKLOADS = {
    f"sdpa_{case}_{dtype}": partial(sdpa, dtype=DTYPES[dtype], **options)
    for (case, options), dtype in product(CASES.items(), DTYPES)
} | {
    f"sdpa_forced_{backend.name.split('_')[0].lower()}_bf16": partial(forced, backend=backend, dtype=torch.bfloat16)
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION)
}
