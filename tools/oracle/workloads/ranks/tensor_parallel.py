"""Layers that are cut: by columns and rows, along the sequence, and both together with FSDP on a mesh."""

import torch
from torch import distributed as dist

from tools.oracle.workloads.ranks.model import loss_of, network, tokens, train


def cut(model, mesh, sequence=False):
    """Tensor parallel: columns of what leads into attention and feed-forward, rows of what leads out of them."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    into = ("attention.query", "attention.key", "attention.value", "feed_forward.up")
    out_of = ("attention.out", "feed_forward.down")
    plan = {name: ColwiseParallel() for name in into}
    if not sequence:
        plan |= {name: RowwiseParallel() for name in out_of}
    else:
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in out_of}
        plan |= {name: SequenceParallel() for name in ("first_norm", "second_norm")}
        plan |= {
            name: PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
            for name in ("attention", "feed_forward")
        }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    if sequence:
        ends = {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        present = {name: style for name, style in ends.items() if getattr(model, name) is not None}
        parallelize_module(model, mesh, present)


def tensor_parallel(stage, sequence=False):
    """All ranks cut each layer among them."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = network()
    stage("model")
    cut(model, mesh, sequence)
    stage("cut")
    train(stage, model, torch.optim.AdamW(model.parameters(), foreach=False))


def two_dimensions(stage, sequence=False, bf16=False):
    """FSDP2 over tensor parallel groups of two, as torchtitan does it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = network()
    stage("model")
    cut(model, mesh["tensor"], sequence)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None
    options = {"mesh": mesh["data"]} | ({"mp_policy": policy} if policy else {})
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    stage("cut and sharded")
    train(stage, model, torch.optim.AdamW(model.parameters(), foreach=False))


def context(stage):
    """Context parallel: each rank has a part of the sequence, and keys and values go round."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = network().bfloat16()
    stage("model")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        x, targets = tokens(), tokens()
        cuts = context_parallel(mesh, buffers=(x, targets), buffer_seq_dims=(1, 1))
        with cuts, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            logits = model(x)
            stage(f"forward {step}")
            loss = loss_of(logits, targets)
            del logits
            loss.backward()
        stage(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        del x, targets, loss, cuts
        stage(f"end {step}")


KINDS = {
    "tp": (tensor_parallel, {}),
    "tp_sequence": (tensor_parallel, {"sequence": True}),
    "fsdp2_tp": (two_dimensions, {}),
    "fsdp2_tp_sequence_bf16": (two_dimensions, {"sequence": True, "bf16": True}),
    "context": (context, {}),
}
