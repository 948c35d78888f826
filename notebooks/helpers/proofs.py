"""Proofs with real processes: several ranks on this machine's CPU, which communicate through gloo, must agree with one.

``processes.run(2, proofs.data_parallel)`` starts two processes, and each calls ``data_parallel(rank, ranks)``. What it
returns is the largest absolute difference from what one process computes. They compute in float32 on the CPU, with or
without a GPU in the machine, simulated or not.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

WIDTH, BATCH = 64, 16


def network() -> nn.Sequential:
    """Four layers with the same random weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))


def samples() -> Tensor:
    """The whole batch, the same in every process, [16, 64]."""
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))


def loss_of(outputs: Tensor, targets: Tensor | None = None) -> Tensor:
    """The mean square of the outputs; targets are ignored."""
    return outputs.square().mean()


def alone() -> nn.Sequential:
    """The network after forward and backward of the whole batch in one process."""
    model = network()
    loss_of(model(samples())).backward()
    return model


def off(ours, theirs) -> float:
    """The largest absolute difference between two lists of tensors."""
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in zip(ours, theirs, strict=True))


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradients, each put together if it is sharded."""
    found = [parameter.grad for parameter in model.parameters()]
    return [one.full_tensor() if hasattr(one, "full_tensor") else one for one in found]  # pyright: ignore


def data_parallel(rank: int, ranks: int) -> float:
    """Compare the gradients of DDP, where each rank has part of the batch, with those of one process."""
    model = nn.parallel.DistributedDataParallel(network())
    loss_of(model(samples().chunk(ranks)[rank])).backward()
    return off(gradients(model), gradients(alone()))


def ring(rank: int, ranks: int) -> float:
    """Compare an all-reduce by hand, 2 · (ranks - 1) steps around the ring, with dist.all_reduce."""
    mine = torch.randn(ranks, 1000, generator=torch.Generator().manual_seed(rank))
    expected = mine.clone()
    dist.all_reduce(expected)
    for step in range(2 * (ranks - 1)):
        send, receive = (rank - step) % ranks, (rank - step - 1) % ranks
        arrived = torch.empty_like(mine[receive])
        requests = [dist.isend(mine[send].clone(), (rank + 1) % ranks), dist.irecv(arrived, (rank - 1) % ranks)]
        for request in requests:
            request.wait()  # pyright: ignore
        if step < ranks - 1:  # the first half of the steps adds, the second passes on
            mine[receive] += arrived
        else:
            mine[receive] = arrived
    return off([mine], [expected])


def sharded(rank: int, ranks: int) -> float:
    """Compare the weights after fully_shard and a step of AdamW with those of one process."""
    from torch.distributed.fsdp import fully_shard

    mesh, model, reference = init_device_mesh("cpu", (ranks,)), network(), alone()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loss_of(model(samples().chunk(ranks)[rank])).backward()
    for one in (model, reference):
        torch.optim.AdamW(one.parameters()).step()
    whole = [parameter.full_tensor() for parameter in model.parameters()]  # pyright: ignore
    return off(whole, reference.parameters())


def sharded_optimizer(rank: int, ranks: int) -> float:
    """Compare the weights after a step of DDP and ZeroRedundancyOptimizer(AdamW) with those of one process."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, reference = nn.parallel.DistributedDataParallel(network()), alone()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
    loss_of(model(samples().chunk(ranks)[rank])).backward()
    optimizer.step()
    torch.optim.AdamW(reference.parameters()).step()
    return off(model.parameters(), reference.parameters())


class _Copy(torch.autograd.Function):
    """Forward returns the input, which is equal on all ranks; backward returns the sum of all gradients."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, *gradients):
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    """Forward returns the sum over all ranks; backward returns the gradient unchanged."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0]


def mlp_by_hand(rank: int, ranks: int) -> float:
    """Compare an MLP sharded by columns, then by rows, with one process: its outputs and the gradient of its input."""
    torch.manual_seed(2)
    up, down = torch.randn(4 * WIDTH, WIDTH) / 8, torch.randn(WIDTH, 4 * WIDTH) / 16
    x, mine = samples().requires_grad_(), samples().requires_grad_()
    whole = F.linear(F.gelu(F.linear(x, up)), down)
    my_up, my_down = up.chunk(ranks, 0)[rank], down.chunk(ranks, 1)[rank]
    split = _Sum.apply(F.linear(F.gelu(F.linear(_Copy.apply(mine), my_up)), my_down))
    loss_of(whole).backward()
    loss_of(split).backward()  # pyright: ignore
    return off([split, mine.grad], [whole, x.grad])


def heads_by_hand(rank: int, ranks: int) -> float:
    """Compare attention whose heads are divided equally among the ranks with all heads in one process."""
    torch.manual_seed(3)
    heads, x = 4, samples().reshape(2, -1, WIDTH)
    into, out = torch.randn(3, heads, WIDTH // heads, WIDTH) / 8, torch.randn(heads, WIDTH // heads, WIDTH) / 8

    def attend(into: Tensor, out: Tensor) -> Tensor:
        q, k, v = torch.einsum("btw,chdw->cbhtd", x, into)
        return torch.einsum("bhtd,hdw->btw", F.scaled_dot_product_attention(q, k, v, is_causal=True), out)

    part = attend(into.chunk(ranks, 1)[rank], out.chunk(ranks, 0)[rank])
    dist.all_reduce(part)
    return off([part], [attend(into, out)])


def tensor_parallel(rank: int, ranks: int) -> float:
    """Compare parallelize_module (columns, rows, columns, rows) with one process: outputs and gradients."""
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    model, reference = network(), alone()
    plan: dict[str, ParallelStyle] = {f"{at}.0": (RowwiseParallel if at % 2 else ColwiseParallel)() for at in range(4)}
    model = parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
    outputs = model(samples())
    loss_of(outputs).backward()
    return off([outputs, *gradients(model)], [reference(samples()), *gradients(reference)])


def _pipeline(schedule_class, rank: int, ranks: int) -> float:
    from torch.distributed.pipelining import PipelineStage

    if 4 % ranks:
        raise ValueError(f"four layers cannot be divided into {ranks} equal stages; use 1, 2 or 4 processes")
    per, reference = 4 // ranks, alone()
    part = network()[rank * per : (rank + 1) * per]
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = schedule_class(stage, 4, loss_fn=loss_of)
    schedule.step(*([samples()] if rank == 0 else []), **({"target": samples()} if rank == ranks - 1 else {}))
    return off(gradients(part), gradients(reference[rank * per : (rank + 1) * per]))


def gpipe(rank: int, ranks: int) -> float:
    """Compare the gradients of GPipe, four layers on 2 or 4 ranks and four micro-batches, with those of one process."""
    from torch.distributed.pipelining import ScheduleGPipe

    return _pipeline(ScheduleGPipe, rank, ranks)


def one_forward_one_backward(rank: int, ranks: int) -> float:
    """Compare the gradients of 1F1B, four layers on 2 or 4 ranks and four micro-batches, with those of one process."""
    from torch.distributed.pipelining import Schedule1F1B

    return _pipeline(Schedule1F1B, rank, ranks)
