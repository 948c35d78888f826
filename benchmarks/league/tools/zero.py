"""ZeRO's model states: 16 bytes a parameter with mixed-precision Adam (Rajbhandari et al. 2020, section 3.1)."""

from __future__ import annotations

from benchmarks.league import training
from benchmarks.league.answer import Refused
from benchmarks.league.answer import within as fits
from benchmarks.league.workloads import Workload

__all__ = ["LIMITS", "NEEDS", "TITLE", "fits", "peak"]

TITLE = "16 bytes a parameter (ZeRO, DeepSpeed)"
NEEDS = ""
LIMITS = "model states only: weights, gradients, Adam's; the paper names activations as the rest"
BYTES = 16


def peak(workload: Workload) -> int:
    """16 bytes a parameter."""
    if workload.optimizer == "sgd":
        raise Refused("the formula is Adam's")
    if workload.dtype == "bf16":
        raise Refused("the formula has fp32 states; these are bf16")
    return BYTES * sum(one.numel() for one in training.built(workload, "meta").parameters())
