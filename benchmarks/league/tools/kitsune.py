"""torch-kitsune's `predict_memory`, with the model on the meta device as its Hugging Face integration makes it."""

from __future__ import annotations

from benchmarks.league import training
from benchmarks.league.answer import Refused
from benchmarks.league.workloads import Workload

TITLE = "torch-kitsune"
NEEDS = "torch-kitsune"
LIMITS = (
    "takes one float input; where a model wants tokens its tracing fails in silence and it counts leaf layers; "
    "no option for autocast (asked as fp32), accumulation (asked with the micro-batch) or checkpointing"
)
KEYS = {"T4": "t4", "A100-80GB": "a100-80gb", "H100": "h100-sxm"}


def peak(workload: Workload) -> int:
    """Its total; `dtype` is, as it says, that of the model and its input."""
    from kitsune.predict import predict_memory

    if workload.checkpoint:
        raise Refused("no option for checkpointing")
    model, optimizer = training.built(workload, "meta"), workload.optimizer.removesuffix("-loop")
    told = {"dtype": training.weights(workload), "optimizer": optimizer, "training": True}
    return predict_memory(model, input_shape=workload.sample, batch_size=workload.batch, **told).total_bytes


def fits(peak: float, gpu: str) -> bool:
    """By its own list of GPUs: VRAM less what it keeps for the driver."""
    from kitsune.predict.gpu_database import get_gpu_spec

    return peak / 2**30 <= get_gpu_spec(KEYS[gpu]).usable_vram_gb
