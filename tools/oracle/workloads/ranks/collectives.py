"""Collectives alone, as a program calls them."""

import torch
from torch import distributed as dist

WIDE = 1024


def functional(stage):
    """Functional collectives, whose results are new tensors."""
    import torch.distributed._functional_collectives as collectives

    group, ranks = dist.group.WORLD, dist.get_world_size()
    x = torch.randn(8 * ranks, WIDE, device="cuda")
    stage("x")
    y = collectives.wait_tensor(collectives.all_gather_tensor(x, 0, group))
    stage("all_gather_tensor")
    y = collectives.wait_tensor(collectives.reduce_scatter_tensor(x, "sum", 0, group))
    stage("reduce_scatter_tensor")
    y = collectives.wait_tensor(collectives.all_gather_tensor(x, 1, group))
    stage("all_gather_tensor of columns")
    y = collectives.wait_tensor(collectives.reduce_scatter_tensor(x, "sum", 1, group))
    stage("reduce_scatter_tensor of columns")
    y = collectives.wait_tensor(collectives.all_reduce(x, "sum", group))
    stage("all_reduce")
    y = collectives.wait_tensor(collectives.broadcast(x, 0, group))
    stage("broadcast")
    y = collectives.wait_tensor(collectives.all_to_all_single(x, None, None, group))
    stage("all_to_all_single")
    several = collectives.all_reduce_coalesced([x, x[:8]], "sum", group)
    several = [collectives.wait_tensor(one) for one in several]
    stage("all_reduce_coalesced")
    y = y + 1  # whatever is not waited for is waited for where it is used
    z = collectives.all_reduce(y, "sum", group) * 2
    del y, several
    stage("used")
    z.sum().item()
    stage("end")


def in_place(stage):
    """Those that write into tensors that the program has."""
    ranks = dist.get_world_size()
    x = torch.randn(8 * ranks, WIDE, device="cuda")
    large = torch.empty(8 * ranks * ranks, WIDE, device="cuda")
    stage("x")
    dist.all_reduce(x)
    stage("all_reduce")
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    y = x @ x.T
    work.wait()
    stage("all_reduce, asynchronous")
    dist.all_gather_into_tensor(large, x)
    stage("all_gather_into_tensor")
    dist.reduce_scatter_tensor(x, large)
    stage("reduce_scatter_tensor")
    dist.broadcast(x, src=0)
    stage("broadcast")
    dist.reduce(x, dst=0)
    stage("reduce")
    dist.all_to_all_single(torch.empty_like(x), x)
    stage("all_to_all_single")
    dist.barrier()
    stage("barrier")
    dist.barrier(device_ids=[torch.cuda.current_device()])
    stage("barrier of a device")
    del y, work
    stage("end")


def lists(stage):
    """Those that take lists of tensors, which NCCL's process group makes flat."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.randn(8, WIDE, device="cuda")
    parts = [torch.empty_like(x) for _ in range(ranks)]
    stage("x")
    dist.all_gather(parts, x)
    stage("all_gather")
    dist.reduce_scatter(x, parts)
    stage("reduce_scatter")
    uneven = [torch.empty(8 + i, WIDE, device="cuda") for i in range(ranks)]
    dist.all_gather(uneven, uneven[rank])
    stage("all_gather, uneven")
    dist.all_to_all([torch.empty_like(x) for _ in range(ranks)], parts)
    stage("all_to_all")
    dist.gather(x, parts if rank == 0 else None, dst=0)
    stage("gather")
    dist.scatter(x, parts if rank == 0 else None, src=0)
    stage("scatter")
    from torch.distributed.distributed_c10d import _coalescing_manager

    with _coalescing_manager(device=torch.device("cuda", torch.cuda.current_device())):
        for part in parts:
            dist.all_reduce(part)
    stage("coalesced")
    x[0] = 1
    dist.all_gather(parts, x)
    stage("end")


def neighbours(stage):
    """What goes to the next rank and comes from the one before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, received = torch.randn(64, WIDE, device="cuda"), torch.empty(64, WIDE, device="cuda")
    stage("x")
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    if rank % 2 == 0:
        dist.send(x, after)
        dist.recv(received, before)
    else:
        dist.recv(received, before)
        dist.send(x, after)
    stage("send and recv")
    sends = [dist.P2POp(dist.isend, x * 2, after), dist.P2POp(dist.irecv, received, before)]
    works = dist.batch_isend_irecv(sends)
    for work in works:
        work.wait()
    stage("batch_isend_irecv")
    del sends, works, work
    stage("end")


def objects(stage):
    """Objects of Python, which go as bytes."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"loss": 1.5, "name": "a few words"})
    stage("all_gather_object")
    given = ["text", 3]
    dist.broadcast_object_list(given, src=dist.get_rank(), device=torch.device("cuda", torch.cuda.current_device()))
    stage("broadcast_object_list")


def groups(stage):
    """Groups of some of the ranks, and a mesh of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    ranks = dist.get_world_size()
    halves = [dist.new_group(list(range(start, ranks, 2))) for start in range(min(2, ranks))]
    x = torch.randn(64, WIDE, device="cuda")
    stage("x")
    dist.all_reduce(x, group=halves[dist.get_rank() % 2])
    stage("all_reduce of half of them")
    if ranks % 2 == 0:
        mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("a", "b"))
        large = torch.empty(128, WIDE, device="cuda")
        dist.all_gather_into_tensor(large, x, group=mesh.get_group("b"))
        stage("all_gather_into_tensor along the mesh")


KINDS = {
    "functional": (functional, {}),
    "collectives": (in_place, {}),
    "lists": (lists, {}),
    "neighbours": (neighbours, {}),
    "objects": (objects, {}),
    "groups": (groups, {}),
}
