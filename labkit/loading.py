"""Datasets for DataLoaders with workers, whose preparation of a sample takes a declared time.

They lie in a module, and not in a notebook's cell: where workers are new processes that import what they need (macOS,
Windows, and Linux from Python 3.14 on), a class of a cell is not found there.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from labkit.stopwatch import host_work


class Photos(Dataset):
    """``samples`` images of 3 × ``side`` × ``side``, each of which takes ``seconds`` of the host to decode."""

    def __init__(self, samples: int, seconds: float, dtype: torch.dtype = torch.uint8, side: int = 224):
        self.samples, self.seconds, self.dtype, self.side = samples, seconds, dtype, side

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        host_work(self.seconds, "decodes")  # on a simulated GPU its clock is told; beside a real one a core is busy
        return torch.zeros(3, self.side, self.side, dtype=self.dtype)


class Stream(IterableDataset):
    """The numbers 0 to ``samples`` - 1 as they come from a file or a socket: there is no ``__getitem__``.

    Each worker has a copy of the dataset. ``divided``: whether the copies share the numbers among them, or each of them
    yields all.
    """

    def __init__(self, samples: int, divided: bool):
        self.samples, self.divided = samples, divided

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info() if self.divided else None
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, self.samples, step)


def threads(samples: list) -> int:
    """A ``collate_fn`` that looks at no sample: with how many threads PyTorch computes in the process around it."""
    return torch.get_num_threads()
