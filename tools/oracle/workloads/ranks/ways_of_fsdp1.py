"""FSDP1 in its other settings: hybrid sharding, parameters on the host, what is gathered when; and DDP that looks for
parameters that were not used."""

import torch
from torch import distributed as dist

from tools.oracle.workloads.ranks.data_parallel import ddp
from tools.oracle.workloads.ranks.model import Layer, network, train


def sharded(stage, sharding="FULL_SHARD", offload=False, prefetch="BACKWARD_PRE", **options):
    """`FullyShardedDataParallel`, each layer a unit. A HYBRID sharding strategy cuts over one half of the ranks, and
    the other half has the same."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if "HYBRID" in sharding:
        shape = 2, dist.get_world_size() // 2
        options["device_mesh"] = init_device_mesh("cuda", shape, mesh_dim_names=("copy", "part"))
    model = network()
    stage("model")
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        device_id=torch.cuda.current_device(),
        sharding_strategy=ShardingStrategy[sharding],
        cpu_offload=CPUOffload(offload),
        backward_prefetch=None if prefetch is None else BackwardPrefetch[prefetch],
        **options,
    )
    stage("sharded")
    train(stage, model, torch.optim.AdamW(model.parameters()))


KINDS = {
    "ddp_unused": (ddp, {"find_unused_parameters": True}),
    "fsdp1_hybrid": (sharded, {"use_orig_params": True, "sharding": "HYBRID_SHARD"}),
    "fsdp1_hybrid_grad_op": (sharded, {"use_orig_params": False, "sharding": "_HYBRID_SHARD_ZERO2"}),
    "fsdp1_offload": (sharded, {"use_orig_params": True, "offload": True}),
    "fsdp1_post": (sharded, {"use_orig_params": False, "prefetch": "BACKWARD_POST"}),
    "fsdp1_unlimited": (sharded, {"use_orig_params": True, "prefetch": None, "limit_all_gathers": False}),
}
