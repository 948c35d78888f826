"""Training as one rank of 8: the counters of PyTorch's CUDA host code under stub libraries, torch 2.13, H100.

Four layers of 512, batch 4 of 128 tokens, AdamW, two steps. After the second: the peak, reserved, allocated, and the
number of allocations.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simgpu

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a PyTorch without torch.distributed")

WIDE, HEADS, VOCABULARY, LENGTH, BATCH, LAYERS = 512, 8, 1000, 128, 4, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (of(x).view(batch, length, -1, WIDE // HEADS).transpose(1, 2) for of in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE, bias=False), nn.Linear(4 * WIDE, WIDE, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.a, self.n2, self.m = nn.LayerNorm(WIDE), Attention(), nn.LayerNorm(WIDE), Mlp()

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.m(self.n2(x))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.n, self.head = nn.LayerNorm(WIDE), nn.Linear(WIDE, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.n(x))


def ddp(model):
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True, bucket_cap_mb=25
    )


def fsdp2(model, **options):
    from torch.distributed.fsdp import fully_shard

    for part in (*model.blocks, model):
        fully_shard(part, reshard_after_forward=True, **options)
    return model


def offloaded(model):
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp2(model, offload_policy=CPUOffloadPolicy())


def bf16(model):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp2(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def in_parts(model):
    """Tensor and sequence parallel."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    gathered = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    plan = {"n1": SequenceParallel(), "n2": SequenceParallel(), "a.o": rows, "m.down": rows}
    plan |= {"a": PrepareModuleInput(**gathered), "m": PrepareModuleInput(**gathered)}
    plan |= dict.fromkeys(("a.q", "a.k", "a.v", "m.up"), columns)
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "n": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)
    return model


@pytest.mark.parametrize(
    ("way", "foreach", "expected"),
    [
        (ddp, None, (361976832, 379584512, 285224960, 629)),
        (fsdp2, None, (195633152, 268435456, 87546880, 902)),
        (bf16, None, (147349504, 201326592, 87546880, 918)),
        (offloaded, None, (175195136, 249561088, 67108864, 902)),
        (in_parts, False, (110708736, 148897792, 87629824, 1064)),
    ],
    ids=["ddp", "fsdp2", "bf16", "offload", "tensor-and-sequence"],
)
def test_two_steps(way, foreach, expected):
    with simgpu.simulated_gpu("H100", ranks=8, rank=0):
        dist.init_process_group("nccl")
        with torch.device("cuda"):
            model = Network()
        model = way(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")
            targets = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")
            y = model(tokens)
            loss = F.cross_entropy(y.flatten(0, 1).float(), targets.flatten())
            del y
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del tokens, targets, loss
        stats = torch.cuda.memory_stats()
        counters = ["allocated_bytes.all.peak", "reserved_bytes.all.current", "allocated_bytes.all.current"]
        assert tuple(stats[name] for name in (*counters, "allocation.all.allocated")) == expected


def test_ddp_sends_its_gradients_once_a_step_unless_told_not_to():
    with simgpu.simulated_gpu("H100", ranks=4, rank=2):
        dist.init_process_group("nccl")
        model = ddp(nn.Linear(64, 64, device="cuda"))
        parameters = sum(one.nbytes for one in model.parameters())
        traffic = simgpu.traffic()
        for synchronized in (True, False, True):
            traffic.clear()
            x = torch.ones(2, 64, device="cuda")
            if synchronized:
                model(x).sum().backward()
            else:
                with model.no_sync():
                    model(x).sum().backward()
            assert traffic["all_reduce"].nbytes == (parameters if synchronized else 0)
