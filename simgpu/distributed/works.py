"""The handles of collectives, which are finished at once for the program, and on the clock when the links are done.

The program does not wait, because the other ranks don't exist.
"""

from datetime import timedelta

import torch
from torch.distributed import Work

from simgpu.distributed.futures import PendingTransfer
from simgpu.distributed.transfers import Arrival, Arrivals


class Finished(Work):
    """A finished work.

    `outputs` are the tensors that it keeps alive while it exists, as NCCL's does for a collective (its future holds
    them; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, collective). `kept` are those that it keeps until it is
    waited for: the inputs of an asynchronous collective (stashed_for_allocator_safety_). `arrival` is when the clock
    has it done, or None if it took no time.
    """

    def __init__(self, outputs=(), kept=(), arrival: Arrival | Arrivals | None = None):
        super().__init__()
        self.arrival = arrival
        self.outputs = list(outputs)
        self.kept = list(kept)
        self.source = -1

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Makes the current stream wait, after a barrier the host; returns True."""
        self.synchronize()
        return True

    def is_completed(self) -> bool:
        """Returns whether it is done by the clock. Each check takes time, so that a polling loop ends."""
        return self.arrival is None or self.arrival.past

    def is_success(self) -> bool:
        """Returns True."""
        return True

    def exception(self):
        """Returns None."""

    def synchronize(self) -> None:
        """Makes the current stream wait, after a barrier the host."""
        self.kept.clear()
        if self.arrival is not None:
            self.arrival.wait()

    block_current_stream = synchronize

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors that the collective wrote."""
        return list(self.outputs)

    def source_rank(self) -> int:
        """Returns the rank that a message came from."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> PendingTransfer:
        """Returns a completed future of the tensors that the collective wrote; waiting for it makes the stream wait."""
        return PendingTransfer(list(self.outputs), self.arrival)
