"""accelerate's rule for training with Adam, the one that `accelerate estimate-memory` prints."""

from __future__ import annotations

from benchmarks.league import training
from benchmarks.league.answer import Refused
from benchmarks.league.answer import within as fits
from benchmarks.league.workloads import Workload

__all__ = ["LIMITS", "NEEDS", "TITLE", "fits", "peak"]

TITLE = "accelerate's rule"
NEEDS = "accelerate"
LIMITS = "weights, gradients and Adam's states; its documentation says that activations are not in it"


def peak(workload: Workload) -> int:
    """The largest of its phases."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    if workload.optimizer == "sgd":
        raise Refused("its rule is Adam's")
    size, _ = calculate_maximum_sizes(training.built(workload, "meta"))
    precision = "bfloat16" if workload.dtype == "autocast" else "float32"  # bf16 weights: four times their own size
    return max(estimate_training_usage(size, precision).values())
