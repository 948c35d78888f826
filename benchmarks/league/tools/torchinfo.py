"""torchinfo's "Estimated Total Size": the input, all layers' outputs once more for backward, the parameters."""

from __future__ import annotations

from benchmarks.league import training
from benchmarks.league.answer import Refused
from benchmarks.league.answer import within as fits
from benchmarks.league.workloads import Workload

__all__ = ["LIMITS", "NEEDS", "TITLE", "fits", "peak"]

TITLE = "torchinfo"
NEEDS = "torchinfo"
LIMITS = "a summary of layers: no gradients of parameters, no optimizer, only what modules return"


def peak(workload: Workload) -> int:
    """Its three sizes together."""
    from torchinfo import summary

    if workload.checkpoint:
        raise Refused("does not know checkpointing")
    with training.settings():
        model, given = training.built(workload, "meta"), training.inputs(workload, "meta")
        told = {"input_data": list(given.values()) if "input" in given else given}
        found = summary(model, **told, device="meta", mode="train", verbose=0)
    return found.total_input + found.total_output_bytes + found.total_param_bytes
