"""Allocates what PyTorch's NCCL host code allocates for a collective in addition to the program's tensors.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

import torch

from simgpu.device import machine as machines
from simgpu.storage import storage_map


def flat(group, tensors) -> list[torch.Tensor]:
    """Returns the contiguous copy of a list that NCCL needs in all_gather and reduce_scatter (newLikeFlat).

    It has to be held until the collective is done. Returns [] on the host, and if the sizes differ, because then each
    tensor is sent separately.
    """
    alike = all(one.shape == tensors[0].shape for one in tensors)
    if not (alike and tensors and _is_nccls(group, tensors[0])):
        return []
    return [_taken(tensors[0].nbytes * len(tensors))]


def barrier(group, device, waits: bool) -> list[torch.Tensor]:
    """Returns the float32 scalar of a barrier, which is an all-reduce; it has to be held until the barrier is done.

    While it begins, one byte is allocated, by whose device the dispatcher finds NCCL (ProcessGroup.hpp, barrier).
    """
    if "nccl" not in group.devices.values() or (device is not None and device.type == "cpu"):
        return []
    byte = _taken(1)
    number = _taken(torch.float32.itemsize)
    if waits:
        del number
        return []
    del byte
    return [number]


def _is_nccls(group, tensor: torch.Tensor) -> bool:
    return "nccl" in group.devices.values() and storage_map.device_of(tensor).type == "cuda"


def _taken(nbytes: int) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda" if machines.current() is None else "meta")
