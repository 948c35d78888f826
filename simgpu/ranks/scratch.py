"""What PyTorch's host code of NCCL takes from the caching allocator for a collective, besides the program's tensors
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""

import torch

from simgpu import machine as machines
from simgpu.tensors import residence


def flat(group, tensors) -> list[torch.Tensor]:
    """The tensors of a list in one piece, as NCCL wants them in all_gather and reduce_scatter (newLikeFlat): to be held
    until the collective is done. None are made where their sizes differ, and each goes alone then, or on the host."""
    alike = all(one.shape == tensors[0].shape for one in tensors)
    if not (alike and tensors and _is_nccls(group, tensors[0])):
        return []
    return [_taken(tensors[0].nbytes * len(tensors))]


def barrier(group, device, waits: bool) -> list[torch.Tensor]:
    """A barrier is an all-reduce of one number in single precision, to be held until it is done. While it begins there
    is a byte, by whose device the dispatcher finds NCCL (ProcessGroup.hpp, barrier)."""
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
    return "nccl" in group.devices.values() and residence.device_of(tensor).type == "cuda"


def _taken(nbytes: int) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda" if machines.current() is None else "meta")
