"""DDP with what people put into it: communication hooks, batch norms over all ranks, tensor parallel layers; and FSDP2
that keeps its layers gathered among some ranks."""

from unittest.mock import patch

import torch
from torch import distributed as dist
from torch import nn

from tools.oracle.workloads.ranks.data_parallel import fsdp2
from tools.oracle.workloads.ranks.model import network, train
from tools.oracle.workloads.ranks.tensor_parallel import cut


def hooked(stage, hook):
    """DDP whose gradients are averaged by a communication hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    model = network()
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
    if hook == "power":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    stage("wrapped")
    train(stage, model, torch.optim.AdamW(model.parameters()), steps=4)


def synced_batch_norm(stage, affine=True, bf16=False):
    """SyncBatchNorm in DDP: of vectors, and of images whose channels lie apart or together.

    As in a CUDA graph it does not select the ranks that have a batch: how many that are a kernel counts, and those of
    the oracle do nothing."""
    from torch.nn.parallel import DistributedDataParallel

    options = {"affine": affine, "device": "cuda"}
    model = nn.Sequential(
        nn.BatchNorm1d(512, **options), nn.Linear(512, 16 * 32 * 32, device="cuda"), nn.Unflatten(1, (16, 32, 32)),
        nn.BatchNorm2d(16, **options), nn.ReLU(), ChannelsLast(), nn.BatchNorm2d(16, **options), nn.Flatten(),
    )  # fmt: skip
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    stage("wrapped")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for step in range(2):
        capturing = patch("torch.cuda.is_current_stream_capturing", lambda: True)
        with capturing, torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            x = model(torch.randn(48, 512, device="cuda"))
        stage(f"forward {step}")
        x.float().square().mean().backward()
        stage(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        stage(f"end {step}")


class ChannelsLast(nn.Module):
    """Lays the channels of a pixel together."""

    def forward(self, x):
        return x.to(memory_format=torch.channels_last)


def replicated_two_dimensions(stage):
    """DDP over tensor parallel groups of two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    model = network()
    stage("model")
    cut(model, mesh["tensor"], False)
    _pre_dp_module_transform(model)
    model = DistributedDataParallel(model, device_mesh=mesh["data"])
    stage("wrapped")
    train(stage, model, torch.optim.AdamW(model.parameters(), foreach=False))


KINDS = {
    "ddp_all_reduce_hook": (hooked, {"hook": "allreduce_hook"}),
    "ddp_fp16_hook": (hooked, {"hook": "fp16_compress_hook"}),
    "ddp_bf16_hook": (hooked, {"hook": "bf16_compress_hook"}),
    "ddp_power_sgd": (hooked, {"hook": "power"}),
    "synced_batch_norm": (synced_batch_norm, {}),
    "synced_batch_norm_plain": (synced_batch_norm, {"affine": False}),
    "synced_batch_norm_bf16": (synced_batch_norm, {"bf16": True}),
    "ddp_tp": (replicated_two_dimensions, {}),
    "fsdp2_resharded_to_two": (fsdp2, {"reshard_after_forward": 2}),
}
