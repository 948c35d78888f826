"""The recorded workloads: plain PyTorch on "cuda", each in its own process.

A workload is a function `name(stage)` that calls `stage("forward")` wherever the counters are to be read. Its return
value, if any, is a step to be timed: a function without arguments that can be repeated. `WORKLOADS` has the workloads
by name, in the order of recording. `SETTINGS` has the allocator's settings of those that do not run with the defaults.

A recording stores a hash of the source of its workload's module, and cannot be replayed after that source has changed.
So a workload that was recorded on a GPU stays as it is, and a better one gets another name in its own module.
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
VARIABLE = "PYTORCH_ALLOC_CONF"  # passes a setting of SETTINGS to PyTorch
