"""Clears caches that must not carry over to another world in the same process: DTensor's, and accelerate's.

For PyTorch, two meshes of the same shape are equal, whichever rank they were made on. But the process groups of their
dimensions are this rank's (torch/distributed/device_mesh.py, __eq__), and so are plans that were made with them. Fake
tensors, with which DTensor makes these plans, cache under "cuda" the index of the GPU that it meant
(torch/_subclasses/fake_tensor.py, _cache_key). The first Accelerator of a process determines for all later ones which
rank they are, on which GPU (accelerate/state.py).
"""

import contextlib
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def begin(leave: contextlib.ExitStack) -> None:
    """Clears the caches of earlier worlds.

    `leave` clears this world's, and restores the generator of DTensor's random numbers.
    """
    _forget()
    random = sys.modules.get("torch.distributed.tensor._random")
    leave.callback(_tracker, getattr(random, "_rng_tracker", None))
    leave.callback(_forget)
    _tracker(None)
    leave.callback(_shared, _shared({}))
    leave.callback(_of_fake_tensors, _of_fake_tensors({}))


def _shared(states: dict[str, dict]) -> dict[str, dict]:
    """Sets the shared state of accelerate's state classes, empty for those not in `states`; returns the previous
    one.
    """
    accelerate: Any = sys.modules.get("accelerate.state")
    before = {}
    for name in ("PartialState", "AcceleratorState", "GradientState") if accelerate is not None else ():
        shared = getattr(accelerate, name)._shared_state
        before[name] = dict(shared)
        shared.clear()
        shared.update(states.get(name, {}))
    return before


def _of_fake_tensors(results: dict) -> dict:
    """Sets the fake tensors' cache of operators; returns the previous one."""
    before, FakeTensorMode.cache = FakeTensorMode.cache, results
    return before


def _forget() -> None:
    redistribute = sys.modules.get("torch.distributed.tensor._redistribute")
    api = sys.modules.get("torch.distributed.tensor._api")
    if redistribute is None or api is None:
        return
    propagator = api.DTensor._op_dispatcher.sharding_propagator
    costs = sys.modules.get("torch.distributed.tensor._collective_utils")
    for cached in (
        getattr(redistribute, "_gen_transform_infos", None),
        getattr(propagator, "propagate_op_sharding", None),
        getattr(propagator, "_propagate_tensor_meta_cached", None),
        getattr(getattr(costs, "MeshTopoInfo", None), "build_from_mesh", None),
    ):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()
    in_cpp = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if in_cpp is not None:
        in_cpp()


def _tracker(one) -> None:
    random: Any = sys.modules.get("torch.distributed.tensor._random")
    if random is not None:
        random._rng_tracker = one
