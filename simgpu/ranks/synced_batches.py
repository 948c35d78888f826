"""Which ranks have a batch: SyncBatchNorm leaves those out that have none, by a mask of the counts that all ranks gave.

The counts come in one tensor with the statistics, whose values nobody knows. Every rank has what this one has, and this
one has a batch where it asks (torch/nn/modules/_functions.py, SyncBatchNorm.forward).
"""

import sys

import torch
from torch.nn.modules._functions import SyncBatchNorm

from simgpu import machine as machines
from simgpu.tensors import residence, values

_ASKING = SyncBatchNorm.forward.__code__
_NEAR = 6  # frames between an index and who asks for it: those of the function mode


def know(mask: torch.Tensor) -> None:
    """Lets a mask be true of all ranks where SyncBatchNorm selects by it, and its values are not known."""
    machine = machines.current()
    if machine is None or machine.world is None or residence.of(mask) is None or values.of(mask) is not None:
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
