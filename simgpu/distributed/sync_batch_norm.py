"""Tells SyncBatchNorm that all ranks have a batch; it excludes ranks without one, by a mask of all ranks' counts.

The counts are in one tensor with the statistics, whose values are unknown. Every rank has what this one has, and this
one has a batch when it calls (torch/nn/modules/_functions.py, SyncBatchNorm.forward).
"""

import sys

import torch
from torch.nn.modules._functions import SyncBatchNorm

from simgpu.device import machine as machines
from simgpu.storage import storage_map, values

_ASKING = SyncBatchNorm.forward.__code__
_NEAR = 6  # frames between an index and the code that uses it, which are the function mode's


def know(mask: torch.Tensor) -> None:
    """Makes a mask with unknown values true for all ranks if SyncBatchNorm selects by it."""
    machine = machines.current()
    if machine is None or machine.world is None or storage_map.of(mask) is None or values.of(mask) is not None:
        return
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        if frame is None:
            return
        if frame.f_code is _ASKING:
            with torch._C.DisableTorchFunction():
                values.keep(mask, torch.ones(mask.shape, dtype=torch.bool, device="cpu"))
            return
        frame = frame.f_back
