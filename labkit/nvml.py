"""Reads the figure that ``nvidia-smi`` shows."""

from __future__ import annotations

import os

import pynvml
import torch


def nvidia_smi(index: int | None = None) -> int | None:
    """Returns the bytes used on the current GPU by all its processes: contexts, segments, and libraries.

    ``index`` selects one of torch's GPUs without initialising CUDA. Returns None if NVML is absent or refuses, as on
    some virtual and integrated GPUs.
    """
    # NVML numbers the machine's GPUs, but torch numbers those of CUDA_VISIBLE_DEVICES (indices or UUIDs).
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if index is None:
        index = torch.cuda.current_device()
    named = visible[index].strip() if index < len(visible) else ""
    try:
        pynvml.nvmlInit()
        if named and not named.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByUUID(named)
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(named or index))
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used  # pyright: ignore[reportReturnType]
    except pynvml.NVMLError:
        return None
