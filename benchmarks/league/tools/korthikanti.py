"""Megatron's formula for activations, with ZeRO's 16 bytes a parameter.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4: a layer keeps
34·s·b·h + 5·a·s²·b bytes in 16 bits, without the scores (selective recomputation; flash attention keeps none either)
34·s·b·h, with full recomputation 2·s·b·h; embeddings, last norm and the output layer s·b·h + 4·s·b·h·(1 + v/h).
"""

from __future__ import annotations

from benchmarks.league.answer import Refused
from benchmarks.league.answer import within as fits
from benchmarks.league.tools import zero
from benchmarks.league.workloads import Workload

__all__ = ["LIMITS", "NEEDS", "TITLE", "fits", "peak"]

TITLE = "Korthikanti's activations + 16 bytes a parameter (Megatron)"
NEEDS = ""
LIMITS = "GPT's layer with dropout in 16 bits, doubled here for fp32; not for gated MLPs, T5 or other networks"


def peak(workload: Workload) -> int:
    """States and activations, bytes."""
    shape, batch = workload.shape, workload.batch
    if shape is None or not shape.gelu_mlp:
        raise Refused("the formula is that of GPT's layer")
    tokens = shape.length * batch * shape.hidden
    scores = 0 if workload.attention == "sdpa" else 5 * shape.heads * shape.length**2 * batch
    layer = 2 * tokens if workload.checkpoint else 34 * tokens + scores
    ends = tokens + (4 * tokens + 4 * shape.length * batch * shape.vocabulary if shape.vocabulary else 0)
    width = 2 if workload.dtype == "fp32" else 1
    return zero.peak(workload) + width * (shape.layers * layer + ends)
