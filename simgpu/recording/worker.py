"""Record one workload in this process: `python -m simgpu.recording.worker NAME FILE PROVENANCE`, JSON the last.

`simgpu.record` starts it, a process for each workload. Without arguments it prints the provenance of the device, as
JSON. `--simulated H100` puts the simulated GPU in the place of the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

import simgpu
from simgpu.recording import history, provenance, timing
from simgpu.recording.trace import Trace
from simgpu.recording.workloads import SETTINGS, VARIABLE, WORKLOADS


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="a workload")
    parser.add_argument("file", nargs="?", type=Path, help="where its recording goes")
    parser.add_argument("provenance", nargs="?", type=json.loads, help="of the device, JSON")
    parser.add_argument("--simulated", metavar="GPU")
    parser.add_argument("--commit")
    options = parser.parse_args(argv)
    with simgpu.simulated_gpu(options.simulated) if options.simulated else contextlib.nullcontext():
        if options.name is None:
            print(json.dumps(provenance.of_device(options.commit)))
        else:
            # the stub libraries do no work, so their times are meaningless
            timed = options.provenance["made by"] != provenance.STUBS
            recorded(options.name, options.provenance, timed).save(options.file, replace=False)


def recorded(name: str, device: Mapping[str, object], timed: bool = True) -> Trace:
    """Records a workload on the "cuda" device of this process, which should not have used it before.

    `device`: its `provenance.of_device()`. `timed`: whether the workload's step is timed too.
    """
    workload = WORKLOADS[name]
    idle = _used()
    of_all = {**device, **provenance.of_workload(workload, settings_of(name))}
    trace, step = history.record(name, workload, of_all, nvml=_used)
    how = timing.SIMULATED if provenance.is_simulated() else (timing.WARM_UP, timing.STEPS)
    step_ms = timing.step_times(step, *how) if timed and callable(step) else ()
    return replace(trace, idle=idle, step_ms=step_ms)


def _used() -> int | None:
    """Returns the bytes used on the device as nvidia-smi shows them; None if NVML is absent or refuses."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        return torch.cuda.device_memory_used(0)
    except (ModuleNotFoundError, pynvml.NVMLError):
        return None


def settings_of(name: str) -> dict[str, str]:
    """Returns the environment variables under which a workload is recorded."""
    return {VARIABLE: SETTINGS[name]} if name in SETTINGS else {}


def environment_of(name: str | None = None) -> dict[str, str]:
    """Returns this process's environment without variables that would change a recording, with the workload's
    settings.
    """
    kept = {key: value for key, value in os.environ.items() if key not in provenance.VARIABLES}
    return kept | (settings_of(name) if name else {})


@contextlib.contextmanager
def in_environment_of(name: str) -> Iterator[None]:
    """Sets this process's environment to `environment_of(name)` inside the `with`."""
    before = dict(os.environ)
    wanted = environment_of(name)
    for key in provenance.VARIABLES:
        os.environ.pop(key, None)
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key in provenance.VARIABLES:
            os.environ.pop(key, None)
            if key in before:
                os.environ[key] = before[key]


if __name__ == "__main__":
    main()
