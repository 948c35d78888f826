"""The handles that collectives give back: finished at once to the program, since the other ranks are not waited for,
and when its links are done on the clock."""

from datetime import timedelta

import torch
from torch.distributed import Work

from simgpu.ranks.futures import Awaited
from simgpu.ranks.transfers import Arrival, Arrivals


class Finished(Work):
    """A finished work. `outputs`: the tensors that it keeps alive while it is there, as NCCL's does of a collective
    (its future holds them; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, collective). `kept`: those that it keeps
    until it is waited for, the inputs of what the program does not wait for at once (stashed_for_allocator_safety_).
    `arrival`: when the clock has it done; None if it took no time."""

    def __init__(self, outputs=(), kept=(), arrival: Arrival | Arrivals | None = None):
        super().__init__()
        self.arrival = arrival
        self.outputs = list(outputs)
        self.kept = list(kept)
        self.source = -1

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Makes the current stream wait, after a barrier the host; True."""
        self.synchronize()
        return True

    def is_completed(self) -> bool:
        """Whether it is done by the clock. Asking takes time, so that a loop that asks ends."""
        return self.arrival is None or self.arrival.past

    def is_success(self) -> bool:
        """True: it went well."""
        return True

    def exception(self):
        """None: it went well."""

    def synchronize(self) -> None:
        """Makes the current stream wait, after a barrier the host."""
        self.kept.clear()
        if self.arrival is not None:
            self.arrival.wait()

    block_current_stream = synchronize

    def result(self) -> list[torch.Tensor]:
        """The tensors that the collective wrote."""
        return list(self.outputs)

    def source_rank(self) -> int:
        """The rank that a message came from."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Awaited:
        """A future that is done, of the tensors that the collective wrote: who waits for it makes the stream wait."""
        return Awaited(list(self.outputs), self.arrival)
