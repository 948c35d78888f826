"""Measures what ways to mask attention allocate, on the stub engine: `python -m tools.flex_attention`.

It writes notebooks/data/masks.yaml, whose figures chapter 08b shows: PyTorch's CUDA code without a GPU.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tools.budget import on_the_stub_engine

STORED = Path(__file__).parents[1] / "notebooks" / "data" / "masks.yaml"
HEAD = "# Written by python -m tools.flex_attention: PyTorch's CUDA code without a GPU (the stub engine), in bytes.\n"
GPU = "A100-80GB"
WAYS = ("block-diagonal mask", "variable lengths", "FlexAttention, not compiled", "FlexAttention, compiled")
RUNS = (*((way, 4096) for way in WAYS), ("FlexAttention, compiled", 2**20))
FIELDS = ("mask", "making the mask", "forward adds", "forward peak", "peak")
"""What a run prints: the mask's bytes, the peak while it is made, and three sizes beyond q, k, v and the mask."""
SCRIPT = """\
import sys
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
way, tokens = sys.argv[1], int(sys.argv[2])
document = torch.arange(tokens, device="cuda") // 32  # as in chapter 08b
def same(batch, head, query, key):
    return document[query] == document[key]
def heads(*tensors):
    return (t.transpose(0, 1)[None] for t in tensors)
def make_mask():
    if way == "block-diagonal mask":
        return document[:, None] == document
    if way == "variable lengths":
        return torch.arange(0, tokens + 1, 32, dtype=torch.int32, device="cuda")
    make = create_block_mask if "not" in way else torch.compile(create_block_mask)
    return make(same, None, None, tokens, tokens, device="cuda")
flex = flex_attention if "not" in way else torch.compile(flex_attention)
def attend(q, k, v, mask):
    if way == "block-diagonal mask":
        return F.scaled_dot_product_attention(*heads(q, k, v), attn_mask=mask[None, None])
    if way == "variable lengths":
        return varlen_attn(q, k, v, mask, mask, 32, 32)
    return flex(*heads(q, k, v), block_mask=mask)
def since(before):
    return torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
for run in range(2):  # the first allocates workspaces, and compiles
    mask = out = None
    q, k, v = (torch.zeros(tokens, 12, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mask = make_mask()
    found = [*since(before)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v, mask)
    found += since(before)
    out.backward(torch.zeros_like(out))
    found.append(since(before)[1])
print("peaks:", *found)
"""


def main() -> None:
    """Runs each way on the stub engine, and writes the rows to STORED in place of the old ones.

    Raises RuntimeError for a run that prints no figures, and then writes nothing.
    """
    from simgpu.stub import engine

    rows = []
    for way, tokens in RUNS:
        found = on_the_stub_engine(GPU, SCRIPT, way, str(tokens))
        rows.append({"way": way, "tokens": tokens, **dict(zip(FIELDS, found, strict=True))})
        print(rows[-1], flush=True)
    data = {"gpu": GPU, "torch": engine.find(None).version, "rows": rows}
    STORED.write_text(HEAD + yaml.safe_dump(data, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
