"""How long a step takes on the device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

WARM_UP, STEPS = 3, 10
SIMULATED = 1, 3  # of the simulated GPU, whose steps take the same time each


def step_times(step: Callable[[], object], warm_up: int = WARM_UP, steps: int = STEPS) -> tuple[float, ...]:
    """Milliseconds of each of `steps` repetitions of `step()`, after `warm_up` more, by CUDA events between them.

    The host is not held up between steps, so that a step's time is the device's wherever the host is ahead of it.
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
