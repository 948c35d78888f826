"""Implements torch.distributed.checkpoint on one rank of many: makes the other ranks' plans for its coordinator.

A plan says which part of each tensor a rank writes. For a DTensor, mesh and placements give the part of every rank, and
for a ShardedTensor (FSDP1's) its metadata does. Every rank has the same other tensors and objects. A rank that is not
the coordinator receives its part of what the coordinator would make of the plans
(torch/distributed/checkpoint/utils.py, _DistWrapper.reduce_scatter).

Rank 0 writes what every rank has. What a different rank would have written does not exist when a checkpoint is loaded,
so a tensor without values represents it.
"""

import dataclasses
import inspect
import sys
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.device import machine as machines
from simgpu.distributed import meeting
from simgpu.errors import NoValueError
from simgpu.storage import storage_map


def gathering(gather, group_of):
    """Wraps gather_object (`gather`), so that a checkpoint's plans are those of each rank.

    `group_of` returns the group of a call if it belongs to a world.
    """

    @wraps(gather)
    def gather_object(obj, object_gather_list=None, dst=None, group=None, *args, **kwargs):
        gather(obj, object_gather_list, dst, group, *args, **kwargs)
        ours, asking = group_of(group), _asking(meeting.callers_frame())
        if ours is not None and asking is not None and object_gather_list is not None:
            object_gather_list[:] = _of_all(obj, ours, asking)

    return gather_object


def scattered(group, frame) -> list | None:
    """Returns what the coordinator would scatter in the checkpoint step that made this call, or None for any other
    call.
    """
    asking = _asking(frame)
    if asking is None:
        return None
    local = asking["local_data"]
    if isinstance(local, tuple):  # an exception and its traceback, which the coordinator passes on
        raise local[0]
    return asking["reduce_fun"](_of_all(local, group, asking))


def _asking(frame) -> dict[str, Any] | None:
    """Returns the variables of the checkpoint step that made a call, or None."""
    utils = sys.modules.get("torch.distributed.checkpoint.utils")
    code = None if utils is None else utils._DistWrapper.reduce_scatter.__code__
    for _ in range(3):
        if frame is None or code is None:
            return None
        if frame.f_code is code:
            return frame.f_locals
        frame = frame.f_back
    return None


def _of_all(local, group, asking) -> list:
    from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

    used = inspect.getclosurevars(inspect.unwrap(asking["map_fun"])).nonlocals
    if isinstance(local, LoadPlan):
        local = _of_what_is_there(local, used.get("planner"), used.get("storage_reader"), group.rank())
    if not isinstance(local, SavePlan):
        return [local] * group.size()
    state = getattr(used.get("planner"), "state_dict", None) or {}
    ranks, alone = group._ranks(), group.rank() == 0
    return [
        local if rank == group.rank() else _plan_of(local, state, ranks[rank], alone) for rank in range(group.size())
    ]


def _of_what_is_there(plan, planner, reader, rank: int):
    """Returns a rank's plan for loading without the parts that a different rank would have written.

    Those parts are loaded here as tensors without values. Raises NoValueError if they cannot be.
    """
    written = getattr(reader, "storage_data", None)
    if planner is None or not written:
        return plan
    for item in plan.items:
        if item.storage_index not in written:
            target = planner.resolve_tensor(item).detach() if item.type.name == "TENSOR" else None
            if target is None or storage_map.of(target) is None or machines.on().host_memory is not None:
                raise NoValueError(
                    f"rank {rank} loads {item.dest_index.fqn!r}, which another rank would have written into this "
                    "checkpoint, but no other rank ran. A simulated GPU without values=True loads tensors without "
                    "values for them; otherwise let rank 0 load only what it has saved itself"
                )
            target.copy_(_without_values(target))
            planner.commit_tensor(item, target)
    return dataclasses.replace(plan, items=[item for item in plan.items if item.storage_index in written])


def _without_values(like: torch.Tensor) -> torch.Tensor:
    """Returns a host tensor of this shape and dtype without values."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        made = torch.empty(like.shape, dtype=like.dtype, device="meta")
    storage_map.bind_host_storage(made.untyped_storage(), machines.on(), made.nbytes)
    return made


def _plan_of(plan, state: dict[str, Any], rank: int, alone: bool):
    """Returns the plan of a rank whose tensors are placed like those of this rank's plan.

    `alone` says that this rank writes what all ranks have.
    """
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.checkpoint import planner_helpers
    from torch.distributed.tensor import DTensor

    items = []
    for item in plan.items:
        tensor = state.get(item.index.fqn)
        if isinstance(tensor, ShardedTensor):
            continue
        if not isinstance(tensor, DTensor):
            items.append(item)
            continue
        found = (tensor.device_mesh.mesh == rank).nonzero().tolist()
        if found:
            items.append(_part_of(item, tensor, found[0]))
    for name, tensor in state.items():
        if isinstance(tensor, ShardedTensor):  # this rank may have no shard of it
            shards = [one for one in tensor.metadata().shards_metadata if _rank_of(one) == rank]
            items += [planner_helpers._create_write_item_for_shard(name, tensor, one) for one in shards]
    mine = {item.index for item in plan.items} if alone else ()
    return dataclasses.replace(plan, items=[item for item in items if item.index not in mine])


def _rank_of(shard) -> int | None:
    """Returns the rank of the world that holds a ShardedTensor's shard, or None."""
    return None if shard.placement is None else shard.placement.rank()


def _part_of(item, tensor, coordinate: list[int]):
    """Returns a DTensor's item for the rank at a coordinate of its mesh."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as part

    mesh = tensor.device_mesh
    sizes, offsets = map(torch.Size, part(tensor.shape, mesh.shape, coordinate, tensor.placements))
    chunk = ChunkStorageMetadata(offsets=offsets, sizes=sizes)
    data = dataclasses.replace(item.tensor_data, chunk=chunk)
    return dataclasses.replace(item, index=MetadataIndex(item.index.fqn, offsets), tensor_data=data)
