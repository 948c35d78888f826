"""Adds the time of a DataLoader's workers to the simulated GPU's clock, in separate lanes.

The processes, the queues and the pinning thread are PyTorch's (torch/utils/data/dataloader.py), and so are the order of
the batches and the number of prefetched ones. Each batch arrives with what its worker recorded (`clock.workers`).
Starting processes and passing batches takes no time on the clock. Neither does a dataset's computation, except for what
it declares with `host_work`.
"""

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import worker as pytorch

from simgpu.clock import workers
from simgpu.device import machine as machines
from simgpu.patches import Patches

_worker_loop = pytorch._worker_loop
_BARE = (pytorch._IterableDatasetStopIteration, pytorch._ResumeIteration, pytorch.ExceptionWrapper)


def patch(patches: Patches) -> None:
    """Makes DataLoaders use this module's iterator."""
    patches.apply(dataloader, "_MultiProcessingDataLoaderIter", Workers)
    # It compares their number with this machine's cores, but the simulated host differs.
    patches.apply(DataLoader, "check_worker_number_rationality", lambda loader: None)


class Timed:
    """A batch, and what its worker did for it. `pinned` is the bytes copied into pinned memory; None without
    pinning.
    """

    def __init__(self, data, spans: list[tuple[str, float]]) -> None:
        self.data, self.spans = data, spans
        self.pinned: int | None = None
        self.index = -1  # the batch's index

    def pin_memory(self) -> "Timed":
        """Pins the batch; the pinning thread calls it."""
        workers.pinning.apart = True
        self.data = dataloader._utils.pin_memory.pin_memory(self.data)
        self.pinned = _pinned_bytes(self.data)
        return self


def _pinned_bytes(data) -> int:
    return sum(one.nbytes for one in pytree.tree_leaves(data) if isinstance(one, torch.Tensor))


class _Queue:
    """A worker's result queue, which also sends what the worker recorded."""

    def __init__(self, queue) -> None:
        self._queue = queue

    def put(self, result) -> None:
        index, data = result
        spans = workers.here.taken() if workers.here is not None else []
        bare = isinstance(index, _BARE) or isinstance(data, _BARE)
        self._queue.put(result if bare else (index, Timed(data, spans)))

    def __getattr__(self, name):
        return getattr(self._queue, name)


def worker_loop(kind, dataset, index_queue, data_queue, *rest) -> None:
    """Runs PyTorch's worker loop in a worker's process, with a host that records its time."""
    workers.here = workers.WorkerHost()
    _worker_loop(kind, dataset, index_queue, _Queue(data_queue), *rest)


class Workers(dataloader._MultiProcessingDataLoaderIter):
    """PyTorch's iterator over a DataLoader with workers, which adds the batches' time to the clock."""

    def __init__(self, loader):
        machine = machines.on()
        self._machine = machine
        self._loading = workers.Loading(machine.clock, loader.num_workers)
        if not getattr(loader, "in_order", True):
            machine.unmodeled.say(
                "in_order",
                "DataLoader(in_order=False): batches come in the order in which this machine's processes finish them, "
                "and the simulated clock takes them in that order",
            )
        loop, pytorch._worker_loop = pytorch._worker_loop, worker_loop
        try:
            super().__init__(loader)
        finally:
            pytorch._worker_loop = loop

    def _reset(self, loader, first_iter=False):
        self._loading.again()
        super()._reset(loader, first_iter)

    def _try_put_index(self):
        before = self._send_idx
        super()._try_put_index()
        if self._send_idx > before:
            self._loading.asked(before, self._task_info[before][0])

    def _get_data(self):
        got = super()._get_data()
        assert got is not None  # it loops until there is a result, or raises
        index, data = got
        if isinstance(data, Timed):
            data.index = index
        return index, data

    def _process_data(self, data, worker_idx):
        if isinstance(data, Timed):
            if self._machine.active:
                self._loading.taken(data.index, data.spans, data.pinned)
            data = data.data
        return super()._process_data(data, worker_idx)
