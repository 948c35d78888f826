"""Provides the other ranks' shards of FSDP1's flat parameters when states are saved.

A flat parameter is split into as many equal pieces as there are ranks, and the last ones may be shorter
(torch/distributed/fsdp/_flat_param.py, FlatParamHandle._get_shard).
"""

import copy
import sys
from functools import wraps

from simgpu.device import machine as machines
from simgpu.distributed import meeting
from simgpu.errors import NoValueError


def gathering(gather, group_of):
    """Wraps all_gather_object (`gather`): returns each rank's own shard, and refuses optimizer states that are missing
    here.

    `group_of` returns the group of a call if it belongs to a world.
    """

    @wraps(gather)
    def all_gather_object(object_list, obj, group=None, *args, **kwargs):
        ours = group_of(group)
        if ours is not None and ours.size() > 1:
            _refuse_states(ours, meeting.callers_frame())
        gather(object_list, obj, group, *args, **kwargs)
        if ours is not None and ours.size() > 1 and type(obj).__name__ == "ShardedTensorMetadata":
            object_list[:] = [_shard_of(obj, rank, ours) for rank in range(ours.size())]

    return all_gather_object


def _shard_of(metadata, rank: int, group):
    """Returns the metadata of a rank's shard, or None if it has none."""
    if rank == group.rank():
        return metadata
    most = -(-metadata.size[0] // group.size()) if len(metadata.size) == 1 else 0
    mine = [(one.shard_offsets, one.shard_sizes) for one in metadata.shards_metadata]
    if mine != [([most * group.rank()], [_length(metadata, most, group.rank())])]:
        raise NoValueError(
            f"rank {group.rank()} makes a ShardedTensor of size {tuple(metadata.size)} with custom shards. The other "
            "ranks would have to report their shards, but they do not run: use DTensor (distribute_tensor, "
            "DTensor.from_local), whose placements describe the shards of every rank"
        )
    length = _length(metadata, most, rank)
    if length <= 0:
        return None
    found = copy.deepcopy(metadata)
    (shard,) = found.shards_metadata
    shard.shard_offsets, shard.shard_sizes = [most * rank], [length]
    device, world = shard.placement.device(), group._ranks()[rank]
    per_node = machines.on().world.per_node  # pyright: ignore[reportOptionalMemberAccess]
    shard.placement = type(shard.placement)(f"rank:{rank}/{device.type}:{world % per_node}")  # pyright: ignore[reportOptionalMemberAccess]
    return found


def _length(metadata, most: int, rank: int) -> int:
    return min(most, metadata.size[0] - most * rank)


def _refuse_states(group, frame) -> None:
    """Raises NoValueError if FSDP1 requests states from other ranks for parameters of which this rank has no shard."""
    utils = sys.modules.get("torch.distributed.fsdp._optim_utils")
    for _ in range(2):
        if frame is None or utils is None:
            return
        if frame.f_code is utils._map_param_key_to_optim_keys.__code__:
            asking = frame.f_locals
            missing = [
                name
                for key, parameter in asking["param_key_to_param"].items()
                if key not in asking["optim_state_dict"]["state"] and parameter.requires_grad
                for name in asking["param_to_fqns"][parameter]
            ]
            if missing and asking["optim_state_dict"]["state"]:
                raise NoValueError(
                    f"rank {group.rank()} has no optimizer state of {', '.join(missing)}: the values are on other "
                    "ranks, which do not run. Use FSDP(..., use_orig_params=False) or FSDP2 (fully_shard), which "
                    "give every rank a part of each state, or save each rank's own optimizer.state_dict()"
                )
        frame = frame.f_back
