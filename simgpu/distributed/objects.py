"""Implements broadcast_object_list and scatter_object_list on a rank that is not their source.

The objects are this rank's own, as if every rank had the same. The sizes and bytes that would be received are prepared
here, so that PyTorch's own functions unpack them and allocate what they normally allocate.
"""

import pickle
import sys
from functools import wraps

import torch

from simgpu.distributed import checkpoints, fsdp1_state, meeting, operators
from simgpu.errors import NoValueError


def broadcasting(broadcast):
    """Wraps broadcast_object_list (`broadcast`): the list is this rank's own."""

    @wraps(broadcast)
    def broadcast_object_list(object_list, *args, **kwargs):
        group = _group(args[1:2], kwargs)
        if group is None:
            return broadcast(object_list, *args, **kwargs)
        parts = [_bytes(one) for one in _of_the_source(object_list, meeting.callers_frame().f_locals)]
        sizes = torch.tensor([part.numel() for part in parts], device="cpu")
        with _Expected(group, [sizes, torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device="cpu")]):
            return broadcast(object_list, *args, **kwargs)

    return broadcast_object_list


def scattering(scatter):
    """Wraps scatter_object_list (`scatter`): this rank's object is that of its own list."""

    @wraps(scatter)
    def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, *args, **kwargs):
        group = _group(args[1:2], kwargs)
        given = (scatter_object_output_list, scatter_object_input_list, *args)
        if group is None:
            return scatter(*given, **kwargs)
        if scatter_object_input_list is None:
            scatter_object_input_list = checkpoints.scattered(group, meeting.callers_frame())
        if scatter_object_input_list is None:
            raise NoValueError(
                f"rank {group.rank()} waits for an object that another rank scatters, and the others are not there: "
                "give scatter_object_input_list on every rank"
            )
        parts = [_bytes(one) for one in scatter_object_input_list]
        mine, most = parts[group.rank()], max(part.numel() for part in parts)
        padded = torch.nn.functional.pad(mine, (0, most - mine.numel()))
        sizes = [torch.tensor([number], device="cpu") for number in (most, mine.numel())]
        comes = [padded, sizes[1]] if _is_source(group, args[:1], kwargs) else [sizes[0], padded, sizes[1]]
        with _Expected(group, comes):
            return scatter(*given, **kwargs)

    return scatter_object_list


def gathering(gather):
    """Wraps gather_object (`gather`): each rank's object is this rank's, except for a checkpoint's plans."""
    return checkpoints.gathering(gather, lambda group: _group((group,), {}))


def all_gathering(gather):
    """Wraps all_gather_object (`gather`): each rank's object is this rank's, except for shards."""
    return fsdp1_state.gathering(gather, lambda group: _group((group,), {}))


def _of_the_source(object_list, asking: dict):
    """Returns the source's list, which is this rank's.

    As an exception, FSDP1's ranks send the keys of an optimizer's state to the others, and keep their own equal ones in
    a separate variable (torch/distributed/fsdp/_optim_utils.py, _map_param_key_to_optim_keys).
    """
    if list(object_list) == [{}] and all(one in asking for one in ("full_state_dict", "local_state_dict")):
        return [_told_of(asking["local_state_dict"])]
    keys = asking.get("optim_state_key_to_param_key")
    return [list(keys)] if keys is not None and list(object_list) == [None] else object_list


def _told_of(states: dict) -> dict:
    """Returns what rank 0 sends about the whole tensors that it then broadcasts: their sizes, and other values as they
    are.

    Each rank has a shard of these tensors (torch/distributed/_state_dict_utils.py, _broadcast_state_dict).
    """
    from torch.distributed._state_dict_utils import _TensorInfo

    whole = {key: torch.is_tensor(one) and one.dim() > 0 for key, one in states.items()}
    return {key: _TensorInfo(one.size(), one.dtype) if whole[key] else one for key, one in states.items()}


def list_of_all() -> list[torch.Tensor] | None:
    """Returns the list that DTensor's first rank scatters, for a rank that was called with the same list.

    Each rank has the whole tensor (torch/distributed/tensor/_collective_utils.py, mesh_scatter). Returns None for any
    other scatter.
    """
    utils = sys.modules.get("torch.distributed.tensor._collective_utils")
    frame = sys._getframe(1) if utils is not None else None
    for _ in range(8):
        if frame is None:
            return None
        if frame.f_code is utils.mesh_scatter.__code__:  # pyright: ignore[reportOptionalMemberAccess]
            return frame.f_locals["scatter_list"]
        frame = frame.f_back
    return None


def refuse_states(rank: int, root) -> None:
    """Raises NoValueError if ZeroRedundancyOptimizer gathers its states, of which each rank has a different part."""
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe(1) if zero is not None else None
    for _ in range(8):
        if frame is None:
            return
        if frame.f_code is zero._broadcast_object.__code__:  # pyright: ignore[reportOptionalMemberAccess]
            raise NoValueError(
                f"rank {rank} waits for the optimizer's state of rank {root} (ZeroRedundancyOptimizer."
                "consolidate_state_dict), which no other rank has, and rank "
                f"{root} is not there: leave the call out, or save each rank's own part, optimizer.optim.state_dict()"
            )
        frame = frame.f_back


class _Expected:
    """Sets what a group's broadcasts and scatters deliver, inside the `with`, to a rank that is not their source."""

    def __init__(self, group, coming: list[torch.Tensor]):
        self.group, self.coming = group, coming

    def __enter__(self):
        self.group.expected = self.coming

    def __exit__(self, *error):
        self.group.expected = []


def _group(position, kwargs):
    """Returns the group of a call if it is a RankGroup that contains this rank, else None."""
    from torch.distributed import distributed_c10d as c10d

    group = kwargs.get("group", position[0] if position else None)
    group = (c10d._get_default_group() if c10d.is_initialized() else None) if group is None else group
    return group if operators.is_rank(group) else None


def _is_source(group, position, kwargs) -> bool:
    """Returns whether this rank is the source of a call's objects: `src` of the world, or `group_src` of the group."""
    if kwargs.get("group_src") is not None:
        return kwargs["group_src"] == group.rank()
    source = kwargs.get("src", position[0] if position else None)
    return group._ranks()[group.rank()] == (source or 0)


def _bytes(one) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(one)), dtype=torch.uint8)
