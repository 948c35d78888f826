"""Datasets for DataLoaders with workers, whose preparation of a sample takes a declared time.

They are defined in a module because workers that start as new processes import what they need (macOS, Windows, and
Linux from Python 3.14 on). Such a worker would not find a class that a notebook's cell defines.
"""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

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
