"""Pipelines: each rank has a stage, or several, and micro-batches go through them in the order of a schedule."""

import torch
from torch import distributed as dist

from tools.oracle.workloads.ranks.model import BATCH, LENGTH, VOCABULARY, WIDTH, Network, loss_of, tokens
from tools.oracle.workloads.ranks.tensor_parallel import cut

PARTS = 8  # micro-batches of a step


def stages(places, number, group=None, change=None):
    """The stages `places` of `number`, a layer each (all four in a single one), with what they receive and send."""
    from torch.distributed.pipelining import PipelineStage

    device = torch.device("cuda", torch.cuda.current_device())
    text = torch.empty(BATCH, LENGTH, dtype=torch.long, device="meta")
    hidden = torch.empty(BATCH, LENGTH, WIDTH, device="meta", requires_grad=True)
    logits = torch.empty(BATCH, LENGTH, VOCABULARY, device="meta", requires_grad=True)
    made = []
    for place in places:
        first, last = place == 0, place == number - 1
        with device:
            model = Network(4 if number == 1 else 1, first, last)
        if change is not None:
            change(model)
        taken, given = text if first else hidden, logits if last else hidden
        made.append(PipelineStage(model, place, number, device, input_args=(taken,), output_args=given, group=group))
    return made


def run(stage, schedule, made, foreach=None):
    """Two steps of a schedule."""
    number = made[0].num_stages
    indices = {one.stage_index for one in made}
    optimizer = torch.optim.AdamW([p for one in made for p in one.submod.parameters()], foreach=foreach)
    for step in range(2):
        text, targets = tokens(PARTS * BATCH), tokens(PARTS * BATCH)
        losses = []
        given = (text,) if 0 in indices else ()
        wanted = {"target": targets, "losses": losses} if number - 1 in indices else {}
        schedule.step(*given, **wanted)
        stage(f"schedule {step}")
        optimizer.step()
        optimizer.zero_grad()
        del text, targets, given, wanted, losses
        stage(f"end {step}")


def one_stage(stage, kind):
    """A stage each."""
    from torch.distributed import pipelining

    (made,) = stages([dist.get_rank()], dist.get_world_size())
    stage("model")
    run(stage, getattr(pipelining, kind)(made, PARTS, loss_fn=loss_of), [made])


def traced(stage, kind):
    """A stage each, cut out of the network that torch.export has traced on the CPU."""
    from torch.distributed import pipelining

    ranks = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    cuts = {f"layers.{place}": pipelining.SplitPoint.BEGINNING for place in range(1, ranks)}
    text = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    made = pipelining.pipeline(Network(max(4, ranks)), mb_args=(text,), split_spec=cuts)
    one = made.build_stage(dist.get_rank(), device)
    stage("model")
    run(stage, getattr(pipelining, kind)(one, PARTS, loss_fn=loss_of), [one])


def two_stages(stage, kind, folded=False):
    """Two stages each: one from each half, or, `folded`, the second half in the opposite order."""
    from torch.distributed import pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    made = stages([rank, 2 * ranks - 1 - rank if folded else rank + ranks], 2 * ranks)
    stage("model")
    run(stage, getattr(pipelining, kind)(made, PARTS, loss_fn=loss_of), made)


def three_dimensions(stage, kind="Schedule1F1B"):
    """FSDP2, a pipeline of two stages, and tensor parallel groups of two."""
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", (2, ranks // 4, 2), mesh_dim_names=("pipeline", "data", "tensor"))

    def change(model):
        cut(model, mesh["tensor"])
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["data"], reshard_after_forward=False)

    group = mesh["pipeline"].get_group()
    (made,) = stages([mesh["pipeline"].get_local_rank()], 2, group, change)
    stage("model")
    run(stage, getattr(pipelining, kind)(made, PARTS, loss_fn=loss_of), [made], foreach=False)


KINDS = {
    "gpipe": (one_stage, {"kind": "ScheduleGPipe"}),
    "1f1b": (one_stage, {"kind": "Schedule1F1B"}),
    "interleaved": (two_stages, {"kind": "ScheduleInterleaved1F1B"}),
    "looped_bfs": (two_stages, {"kind": "ScheduleLoopedBFS"}),
    "zero_bubble": (two_stages, {"kind": "ScheduleInterleavedZeroBubble"}),
    "zbv": (two_stages, {"kind": "ScheduleZBVZeroBubble", "folded": True}),
    "traced": (traced, {"kind": "Schedule1F1B"}),
    "three_dimensions": (three_dimensions, {}),
}
