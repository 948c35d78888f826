"""The time of a step on the device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

WARM_UP, STEPS = 3, 10
SIMULATED = 1, 3  # for the simulated GPU, whose steps all have the same time


def step_times(step: Callable[[], object], warm_up: int = WARM_UP, steps: int = STEPS) -> tuple[float, ...]:
    """Returns the milliseconds of each of `steps` repetitions of `step()`, after `warm_up` more, by CUDA events between
    them.

    The host does not wait between steps. So a step's time is that of the device if the host is ahead of it.
    """
    for _ in range(warm_up):
        step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return tuple(round(before.elapsed_time(after), 6) for before, after in pairwise(events))
