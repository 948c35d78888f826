"""What NCCL's process group keeps of collectives that nobody waits for by their handle: it is let go by a later one,
after NCCL's watchdog has seen that they are over (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, runLoop and
workEnqueue, shelvesToUnstash_).

The watchdog looks every 0.1 s, so that when it does is none of the program's. Here it looks between one backward pass
and the next collective outside of it, as on a GPU whose steps take longer than that; where something is freed so, it is
named (`left_out.WATCHDOG`).
"""

import torch

from simgpu import left_out
from simgpu import machine as machines


class Shelves:
    """The tensors that the collectives of one group keep."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, list[torch.Tensor]]] = []

    def add(self, kept: list[torch.Tensor]) -> None:
        """Another collective begins, which keeps these until its handle is waited for: `kept` is empty from then on."""
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
        machine.left_out.add("a collective whose handle nobody waits for", left_out.WATCHDOG, lower_bound=False)
