"""Allocates and keeps what PyTorch's NCCL host code needs in addition to the program's tensors."""

import torch

from simgpu import unmodeled
from simgpu.device import machine as machines
from simgpu.storage import storage_map

# Allocates what PyTorch's NCCL host code allocates for a collective in addition to the program's tensors.
# Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.


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


# Keeps the tensors of NCCL collectives whose handles are not waited for, until a later collective releases them.
# NCCL does so after its watchdog has seen that they are over (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp,
# runLoop and workEnqueue, shelvesToUnstash_). The watchdog checks every 0.1 s, so the program does not control when.
# Here it checks between one backward pass and the next collective outside of it, as on a GPU whose steps take longer
# than that. If something is freed in this way, the report names it (`unmodeled.WATCHDOG`).


class StashedTensors:
    """The tensors that the collectives of one group keep."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, list[torch.Tensor]]] = []

    def add(self, kept: list[torch.Tensor]) -> None:
        """Adds a collective that keeps these tensors until its handle is waited for; `kept` is empty from then on."""
        task = torch._C._current_graph_task_id()
        before, self._kept = self._kept, [(made, one) for made, one in self._kept if one and made == task != -1]
        for made, one in before:
            if one and not made == task != -1:
                _let_go(one)
        if kept:
            self._kept.append((task, kept))


def _let_go(kept: list[torch.Tensor]) -> None:
    machine = machines.current()
    before = None if machine is None else machine.allocator.allocated
    kept.clear()
    if machine is not None and machine.allocator.allocated != before:
        machine.unmodeled.add("a collective whose handle nobody waits for", unmodeled.WATCHDOG, lower_bound=False)
