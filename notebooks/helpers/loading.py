"""Datasets for DataLoaders with workers, whose preparation of a sample takes a declared time.

They are defined in a module because workers that start as new processes import what they need (macOS, Windows, and
Linux from Python 3.14 on). Such a worker would not find a class that a notebook's cell defines.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from labkit.timing import host_work


class Photos(Dataset):
    """Provides ``samples`` images of 3 × ``side`` × ``side``, each of which takes the host ``seconds`` to decode."""

    def __init__(self, samples: int, seconds: float, dtype: torch.dtype = torch.uint8, side: int = 224):
        self.samples, self.seconds, self.dtype, self.side = samples, seconds, dtype, side

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        host_work(self.seconds, "decodes")  # advances a simulated GPU's clock; with a real GPU it keeps a core busy
        return torch.zeros(3, self.side, self.side, dtype=self.dtype)


class Stream(IterableDataset):
    """Yields the integers 0 to ``samples`` - 1, as from a file or a socket: there is no ``__getitem__``.

    Each worker has a copy of the dataset. ``divided`` says whether the copies share the integers, or each yields all.
    """

    def __init__(self, samples: int, divided: bool):
        self.samples, self.divided = samples, divided

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info() if self.divided else None
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from range(first, self.samples, step)


def threads(samples: list) -> int:
    """Returns the number of threads that PyTorch computes with in this process: a ``collate_fn`` that ignores its
    samples.
    """
    return torch.get_num_threads()
