"""MLSys·im's `TrainingMemoryModel`."""

from __future__ import annotations

from benchmarks.league import training
from benchmarks.league.answer import Refused
from benchmarks.league.workloads import Workload

TITLE = "MLSys·im"
NEEDS = "mlsysim"
LIMITS = (
    "an analytical model for teaching; Transformers only; Adam with an fp32 copy of the weights; no logits; sdpa is "
    "told as its `selective` recomputation, since neither keeps the scores"
)
PRECISIONS = {"fp32": "fp32", "bf16": "bf16", "autocast": "bf16"}
GPUS = {"T4": "T4", "A100-80GB": "A100", "H100": "H100"}


def peak(workload: Workload) -> float:
    """Its total memory, bytes, for one GPU."""
    return _solved(workload).total_memory.m_as("byte")


def fits(peak: float, gpu: str) -> bool:
    """By its own rule: at most the capacity in its registry."""
    return peak <= _hardware(gpu).memory.capacity.m_as("byte")


def _hardware(gpu: str):
    from mlsysim import Hardware

    return getattr(Hardware.Cloud, GPUS[gpu])


def _solved(workload: Workload):
    from mlsysim.core.units import Q_
    from mlsysim.engine.solvers.training import TrainingMemoryModel
    from mlsysim.models.types import TransformerWorkload

    shape = workload.shape
    if shape is None:
        raise Refused("models Transformers only")
    count = sum(one.numel() for one in training.built(workload, "meta").parameters())
    model = TransformerWorkload(
        name=workload.name,
        architecture="Transformer",
        parameters=Q_(count, "count"),
        layers=shape.layers,
        hidden_dim=shape.hidden,
        heads=shape.heads,
    )
    recomputed = "full" if workload.checkpoint else "selective" if workload.attention == "sdpa" else "none"
    return TrainingMemoryModel().solve(
        model,
        _hardware("A100-80GB"),
        batch_size=workload.batch * workload.accumulate,
        seq_len=shape.length,
        precision=PRECISIONS[workload.dtype],
        optimizer=workload.optimizer.removesuffix("-loop"),
        activation_checkpointing=recomputed,
        gradient_accumulation_steps=workload.accumulate,
    )
