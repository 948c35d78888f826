"""Keeps the tensors of NCCL collectives whose handles are not waited for, until a later collective releases them.

NCCL does so after its watchdog has seen that they are over (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, runLoop
and workEnqueue, shelvesToUnstash_). The watchdog checks every 0.1 s, so the program does not control when. Here it
checks between one backward pass and the next collective outside of it, as on a GPU whose steps take longer than that.
If something is freed in this way, the report names it (`unmodeled.WATCHDOG`).
"""

import torch

from simgpu import unmodeled
from simgpu.device import machine as machines


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
