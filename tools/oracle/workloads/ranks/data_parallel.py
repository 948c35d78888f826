"""Data parallel training: DDP, with sharded states of the optimizer, and both generations of FSDP."""

from contextlib import nullcontext

import torch
from torch import distributed as dist

from tools.oracle.workloads.ranks.model import Layer, Network, loss_of, network, tokens, train


def ddp(stage, accumulate=1, steps=3, **options):
    """DDP; with `accumulate`, all batches of a step but the last one in `no_sync()`."""
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    stage("model")
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], **options)
    stage("wrapped")
    optimizer = torch.optim.AdamW(model.parameters())
    if accumulate == 1:
        train(stage, model, optimizer, steps)
        return
    for step in range(steps):
        for part in range(accumulate):
            with nullcontext() if part == accumulate - 1 else model.no_sync():
                loss_of(model(tokens()), tokens()).backward()
            stage(f"backward {step}.{part}")
        optimizer.step()
        optimizer.zero_grad()
        stage(f"end {step}")


def zero(stage, **options):
    """DDP with ZeroRedundancyOptimizer: each rank keeps the optimizer's states of its share of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
    stage("wrapped")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3, **options)
    stage("optimizer")
    train(stage, model, optimizer, steps=3)


def fsdp2(stage, offload=False, meta=False, bf16=False, accumulate=1, replicas=1, vocabulary=1000, **options):
    """`fully_shard` of each layer and of the network."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    ranks = dist.get_world_size()
    if replicas > 1:
        options["mesh"] = init_device_mesh("cuda", (replicas, ranks // replicas), mesh_dim_names=("copy", "shard"))
    else:
        options["mesh"] = init_device_mesh("cuda", (ranks,))
    if bf16:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if offload:
        options["offload_policy"] = CPUOffloadPolicy()
    if meta:
        with torch.device("meta"):
            model = Network(vocabulary=vocabulary)
    else:
        model = network(vocabulary=vocabulary)
        stage("model")
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    stage("sharded")
    if meta:
        model.to_empty(device="cpu" if offload else "cuda")
        stage("to_empty")
    optimizer = torch.optim.AdamW(model.parameters())
    if accumulate == 1:
        train(stage, model, optimizer)
        return
    for step in range(2):
        for part in range(accumulate):
            model.set_requires_gradient_sync(part == accumulate - 1)
            loss_of(model(tokens()), tokens()).backward()
            stage(f"backward {step}.{part}")
        optimizer.step()
        optimizer.zero_grad()
        stage(f"end {step}")


def fsdp1(stage, bf16=False, sharding="FULL_SHARD", offload=False, **options):
    """`FullyShardedDataParallel`, each layer a unit."""
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if bf16:
        options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = network()
    stage("model")
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        device_id=torch.cuda.current_device(),
        sharding_strategy=ShardingStrategy[sharding],
        cpu_offload=CPUOffload(offload),
        **options,
    )
    stage("sharded")
    train(stage, model, torch.optim.AdamW(model.parameters()))


KINDS = {
    "ddp": (ddp, {"gradient_as_bucket_view": True}),
    "ddp_25": (ddp, {"gradient_as_bucket_view": True, "bucket_cap_mb": 25}),
    "ddp_copied": (ddp, {"gradient_as_bucket_view": False}),
    "ddp_accumulated": (ddp, {"gradient_as_bucket_view": True, "accumulate": 3}),
    "ddp_accumulated_copied": (ddp, {"accumulate": 2}),
    "ddp_static": (ddp, {"gradient_as_bucket_view": True, "static_graph": True}),
    "ddp_small_buckets": (ddp, {"bucket_cap_mb": 1}),
    "zero1": (zero, {}),
    "zero1_views": (zero, {"parameters_as_bucket_view": True}),
    "fsdp2": (fsdp2, {}),
    "fsdp2_resharded": (fsdp2, {"reshard_after_forward": True}),
    "fsdp2_kept": (fsdp2, {"reshard_after_forward": False}),
    "fsdp2_bf16": (fsdp2, {"bf16": True}),
    "fsdp2_offload": (fsdp2, {"offload": True}),
    "fsdp2_meta": (fsdp2, {"meta": True}),
    "fsdp2_meta_bf16": (fsdp2, {"meta": True, "bf16": True}),
    "fsdp2_accumulated": (fsdp2, {"accumulate": 3}),
    "fsdp2_uneven": (fsdp2, {"vocabulary": 1003}),
    "hsdp": (fsdp2, {"replicas": 2}),
    "fsdp1": (fsdp1, {"use_orig_params": True}),
    "fsdp1_flat": (fsdp1, {"use_orig_params": False}),
    "fsdp1_bf16": (fsdp1, {"use_orig_params": True, "bf16": True}),
    "fsdp1_grad_op": (fsdp1, {"use_orig_params": True, "sharding": "SHARD_GRAD_OP"}),
    "fsdp1_no_shard": (fsdp1, {"use_orig_params": True, "sharding": "NO_SHARD"}),
}
