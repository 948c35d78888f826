"""Runs one rank of a plan of `helpers.plans`, in PyTorch's own code: FSDP2, tensor and context parallelism, a pipeline.

The single techniques are those of chapters 19 to 21b. Context parallelism is not combined with pipelines or replicas.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as tp
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import cross_entropy

import labkit
from helpers import models
from helpers.plans import KINDS, Model, Plan

GPU, MEMORY = "H100", 96 * 2**30
"""The simulated GPU and its bytes, those of the H100s on which torchtitan published its plan for 405B."""

TOKENS, WHOLE = Shard(1), Replicate()
GATHER = tp.PrepareModuleOutput(output_layouts=TOKENS, desired_output_layouts=WHOLE, use_local_output=False)
LAYER: dict[str, Any] = {name: tp.ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
LAYER |= {name: tp.RowwiseParallel(output_layouts=TOKENS) for name in ("o", "down")}
LAYER |= {name: tp.SequenceParallel() for name in ("norm_1", "norm_2")}
ENDS: dict[str, Any] = {
    "tokens": tp.RowwiseParallel(input_layouts=WHOLE, output_layouts=TOKENS),
    "norm": tp.SequenceParallel(),
    "head": tp.ColwiseParallel(input_layouts=TOKENS, output_layouts=Shard(-1), use_local_output=False),
}


@dataclass(frozen=True)
class Step:
    """Holds the bytes of a rank's training step: allocated before it and at its peak, and reserved after it.

    `trace` has an event per kernel, as in a trace of torch.profiler, if it was requested.
    """

    before: int
    peak: int
    reserved: int
    trace: tuple[dict[str, Any], ...] = ()


def simulate(
    model: Model,
    plan: Plan,
    layers: int,
    stage: int = 0,
    *,
    expandable: bool = False,
    trace: bool = False,
    link: str | float | None = None,
) -> Step:
    """Returns the training step of the first rank of a stage that has ``layers`` layers, as a simulated GPU runs it.

    `expandable` switches the allocator's `expandable_segments` on. `trace` records the step's kernels at the times of
    the simulated clock, which are estimates. `link` is that of `simgpu.one_rank`.

    AdamW's states exist before the step. A pipeline runs as many micro-batches as it has stages, any other plan at most
    two, because more of them need no more memory. With context parallelism it runs one micro-batch, whose keys and
    values all ranks gather, which is PyTorch's default. Raises ``ValueError`` for context parallelism together with a
    pipeline or replicas.
    """
    if plan.context > 1 and plan.pipeline * plan.replicas > 1:
        raise ValueError(f"context parallelism with a pipeline or replicas is only estimated; {plan} was given")
    micro = plan.pipeline if plan.pipeline > 1 else 1 if plan.context > 1 else min(2, plan.micro_batches)
    with labkit.simulated_gpu(GPU, MEMORY), labkit.one_rank(plan.first_rank(stage), of=plan.gpus, link=link):
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{expandable}")
        ledger, _ = labkit.Ledger(), dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", plan.dims, mesh_dim_names=KINDS)
        part = build(model, plan, layers, stage, mesh)
        adam = torch.optim.AdamW(part.parameters(), foreach=False)
        for one in part.parameters():
            one.grad = torch.zeros_like(one)
        adam.step(), adam.zero_grad()  # AdamW's states exist, as after a first step
        ids = torch.zeros(micro * plan.sequences, model.length, dtype=torch.long, device="cuda")
        schedule = _schedule(model, plan, part, stage, mesh, micro) if plan.pipeline > 1 else None
        shorter = _own_tokens(part, ids, mesh) if plan.context > 1 else nullcontext()
        loss = tp.loss_parallel() if plan.tensor > 1 else nullcontext()
        with shorter, ledger("step"), labkit.stopwatch(lanes=trace) as timing, loss:
            _forward_and_backward(part, schedule, ids, micro, stage, plan.pipeline)
            adam.step(), adam.zero_grad()
        step = ledger["step"]
        return Step(step.before, step.peak, step.reserved, tuple(map(_event, timing.lanes)) if trace else ())


def _event(one: Any) -> dict[str, Any]:
    """Returns an interval of a lane as torch.profiler stores it: start and duration in µs, and kernels by category."""
    name = f"ncclDevKernel_{one.name}" if one.lane == "communication" else one.name
    kind = "kernel" if one.lane in ("compute", "communication") else one.lane
    return {"ph": "X", "cat": kind, "name": name, "ts": 1e3 * one.start, "dur": 1e3 * (one.end - one.start)}


def build(model: Model, plan: Plan, layers: int, stage: int, mesh: DeviceMesh) -> nn.Module:
    """Returns ``layers`` layers of a stage, with embedding and output layer at the ends, sharded as the plan says."""
    first, last = stage == 0, stage == plan.pipeline - 1
    sizes = model.hidden, model.heads, model.shared_heads, model.inner, model.vocabulary, model.length
    with torch.device("meta"):
        part = models.Llama(layers, *sizes, first=first, last=last)
    if plan.tensor > 1:
        for layer in part.layers:
            tp.parallelize_module(layer, mesh["tensor"], LAYER)
            tp.parallelize_module(layer, mesh["tensor"], {"norm_1": GATHER, "norm_2": GATHER})  # once for q, k and v
        present = ["tokens"] * first + ["norm", "head"] * last
        tp.parallelize_module(part, mesh["tensor"], {name: ENDS[name] for name in present})
    options: dict[str, Any] = {
        "mesh": _data_mesh(plan, mesh),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "reshard_after_forward": plan.pipeline == 1,  # in a pipeline the weights stay gathered, as in torchtitan
    }
    for number, layer in enumerate(part.layers):
        if plan.checkpointed:
            part.layers[number] = layer = checkpoint_wrapper(layer, preserve_rng_state=False)
        fully_shard(layer, **options)
    groups: list[Any] = [part.tokens] * first + [[part.norm, part.head]] * last
    for group in groups:
        fully_shard(group, **options)
    fully_shard(part, **options)
    return part.to_empty(device="cuda")


def _data_mesh(plan: Plan, mesh: DeviceMesh) -> DeviceMesh:
    """Returns the ranks over which FSDP shards, which include those that share a sequence."""
    if plan.context > 1:
        return mesh["shards", "context"]._flatten("data")
    return mesh["replicas", "shards"] if plan.replicas > 1 else mesh["shards"]


def _own_tokens(part: nn.Module, ids: Tensor, mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Returns a context in which the token ids and the positions' angles are those of this rank's part of a sequence.

    All layers use one tensor of angles, as in torchtitan.
    """
    rotary = next(part.buffers())
    for one in part.modules():
        if isinstance(one, models.LlamaLayer):
            one.rotary = rotary
    buffers = [ids, rotary]
    return context_parallel(mesh["context"], buffers=buffers, buffer_seq_dims=[1, 1], no_restore_buffers=set(buffers))


def _loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


def _schedule(model: Model, plan: Plan, part: nn.Module, stage: int, mesh: DeviceMesh, micro: int) -> Schedule1F1B:
    """The 1F1B schedule of chapter 21; between stages a rank sends only its own tokens."""
    some: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16, "requires_grad": True}
    hidden = torch.empty(plan.sequences, model.length // plan.tensor, model.hidden, **some)
    logits = torch.empty(plan.sequences, model.length, model.vocabulary, **some)
    ids = torch.empty(plan.sequences, model.length, dtype=torch.long, device="meta")
    shapes = ids if stage == 0 else hidden, logits if stage == plan.pipeline - 1 else hidden
    group = mesh.get_group("pipeline")
    one = PipelineStage(part, stage, plan.pipeline, torch.device("cuda"), *shapes, group=group)
    return Schedule1F1B(one, micro, loss_fn=_loss_of)


def _forward_and_backward(
    part: nn.Module, schedule: Schedule1F1B | None, ids: Tensor, micro: int, stage: int, stages: int
) -> None:
    if schedule is not None:
        wanted: dict[str, Any] = {"target": ids} if stage == stages - 1 else {}
        schedule.step(*[ids] * (stage == 0), **wanted, return_outputs=False)
        return
    for some in ids.chunk(micro):
        _loss_of(part(some), some).backward()
