"""What is recorded: plain PyTorch on "cuda", each workload in a process of its own.

A workload is a function `name(stage)` that calls `stage("forward")` wherever the counters are to be read. What it
returns, if anything, is a step to be timed, a function without arguments that can be repeated. `WORKLOADS` has them by
name, in the order in which they are recorded; `SETTINGS` the allocator's settings of those that are not run in the
default ones.

A recording is of the source of its workload's module, and can no longer be replayed once that has changed. So what has
been recorded on a GPU stays as it is, and a better one gets another name, in a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simgpu.recording.workloads import language, limits, linear, optimizers, pages, saving, settings, sweeps, vision

MODULES = (pages, linear, language, optimizers, saving, vision, sweeps, limits, settings)
WORKLOADS: Mapping[str, Callable] = MappingProxyType(
    {name: workload for module in MODULES for name, workload in module.WORKLOADS.items()}
)
SETTINGS: Mapping[str, str] = settings.SETTINGS
VARIABLE = "PYTORCH_ALLOC_CONF"  # how a setting of SETTINGS reaches PyTorch
