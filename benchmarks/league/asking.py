"""Asks one tool: `python -m benchmarks.league.asking TOOL FILE GPU... WORKLOAD...`, a process for each tool.

TOOL is a name of `tools.NAMES`, or "oracle". The tools that run the steps are asked with one GPU.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.league import training
from benchmarks.league.answer import GPUS, Answer, Refused
from benchmarks.league.workloads import WORKLOADS, Workload

RUN = ("oracle", "simulated")


def main(tool: str, file: str, *told: str) -> None:
    """Write `{workload: answer}` into the file."""
    warnings.simplefilter("ignore")
    gpus = [one for one in told if one in GPUS]
    workloads = [WORKLOADS[one] for one in told if one in WORKLOADS]
    found = ran(tool, gpus[0], workloads) if tool in RUN else estimated(tool, gpus, workloads)
    Path(file).write_text(json.dumps({name: answer.as_json() for name, answer in found.items()}))


def ran(tool: str, gpu: str, workloads: list[Workload]) -> dict[str, Answer]:
    """The answers of the oracle's process, which this is, or of the simulated GPU."""
    from simgpu import simulated_gpu

    with simulated_gpu(gpu) if tool == "simulated" else nullcontext():
        return {workload.name: trained(workload, gpu) for workload in workloads}


def trained(workload: Workload, gpu: str) -> Answer:
    """Both steps on this process's "cuda", its memory empty before."""
    _emptied()
    start = time.process_time()
    try:
        training.run(workload, "cuda")
        peak = torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError:
        peak = None
    except Exception as raised:
        return Answer(refused=f"{type(raised).__name__}: {raised}"[:200])
    return Answer({gpu: peak}, {gpu: peak is not None}, seconds=time.process_time() - start)


def _emptied() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def estimated(tool: str, gpus: list[str], workloads: list[Workload]) -> dict[str, Answer]:
    """The answers of an estimator: one peak, and whether it fits each GPU."""
    module = import_module(f"benchmarks.league.tools.{tool}")
    return {workload.name: _estimate(module, gpus, workload) for workload in workloads}


def _estimate(module, gpus: list[str], workload: Workload) -> Answer:
    start = time.process_time()
    try:
        peak = int(module.peak(workload))
        fits = {gpu: module.fits(peak, gpu) for gpu in gpus}
    except Refused as refused:
        return Answer(refused=str(refused))
    except Exception as raised:
        return Answer(refused=f"{type(raised).__name__}: {raised}".split("\n")[0][:200])
    return Answer(dict.fromkeys(gpus, peak), fits, seconds=time.process_time() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
