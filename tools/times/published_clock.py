"""Compares the clock with the published rows: `python -m tools.times.published_clock FOLDER [--kept-out | WORD ...]`.

FOLDER holds timm and torchvision, as for `python -m tools.times run`. The times of the half "fit" are stored in
docs/published_times.json, as `Reading` has them. With --kept-out the other half runs, and
docs/published_kept_out.json gets what its rows say by kind of work, but no time of a row is printed or stored, so that
no constant can be fitted to it. Other words run only rows that have one of them in their names.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

import labkit
from simgpu.clock import estimates
from simgpu.clock.clock import Reading
from simgpu.clock.tracks import Lanes
from simgpu.device import machine as machines
from tools.times import candidates, fitted, published, published_models, published_shards, time_bias
from tools.times.fitted import Compared
from tools.times.published import Row
from tools.times.rows import MEMORY

CLASSES = {
    "Volta and Turing": ("T4", "V100-16GB", "V100-32GB"),
    "Ampere and Ada": ("A10G", "A100-40GB", "A100-80GB", "RTX A6000", "RTX 3060", "RTX 3090", "RTX 4090", "L4", "L40S"),
    "Hopper and Blackwell": ("H100", "H200", "B200", "RTX 5090"),
}


def can_be_built(row: Row) -> bool:
    """Returns whether this project can build the model and the step of a row."""
    return published_models.builder(row) is not None or published_shards.builder(row) is not None


def timed(step: Callable[[], object]) -> tuple[float, ...]:
    """Runs a step from an idle GPU to an idle GPU, and returns the values of the clock's reading, and of its parts."""
    clock = machines.on().clock
    clock.synchronize()
    before = clock.reading()
    clock.lanes = lanes = Lanes()
    step()
    clock.synchronize()
    clock.lanes = None
    return (*clock.reading().since(before), *candidates.parts_of(lanes.intervals))


def measure(row: Row) -> Compared:
    """Returns a row with the clock's reading of its second step.

    Raises ValueError if its model cannot be built.
    """
    torch._dynamo.reset()
    make = published_models.builder(row)
    with published_models.precision(row), labkit.simulated_gpu(row.simulated_gpu or "", total_memory=MEMORY):
        if make is None:
            with labkit.one_rank(0, of=row.gpus):
                torch.distributed.init_process_group("nccl")
                values = published_shards.values(row, timed)
        else:
            step = make(row)
            step()
            values = timed(step)
    return Compared(row, Reading(*values[:4]), values[4:])


def group(row: Row) -> tuple[str, str, str]:
    """Returns what a ratio is summarized by: kind, mode and class of GPU."""
    mode = "not stated" if row.mode is None else row.mode if row.mode == "eager" else "compiled"
    return row.kind, mode, next(name for name, gpus in CLASSES.items() if row.simulated_gpu in gpus)


def table(ratios: Iterable[tuple[Row, float]]) -> str:
    """Returns ratios of the clock's to the published time, by group and half, as a table in Markdown."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row, ratio in ratios:
        found[(row.half, *group(row))].append(ratio)
        found[(row.half, row.kind, "all", "all")].append(ratio)
    lines = ["| half | kind | mode | GPUs | rows | median ratio | median absolute error | lowest | highest |"]
    lines.append("| --- " * 9 + "|")
    for key, values in sorted(found.items()):
        error = statistics.median(abs(value - 1) for value in values)
        figures = f"{statistics.median(values):.2f} | {error:.0%} | {min(values):.2f} | {max(values):.2f}"
        lines.append(f"| {' | '.join(key)} | {len(values)} | {figures} |")
    return "\n".join(lines)


def run(rows: Iterable[Row]) -> Iterator[Compared]:
    """Runs rows that can be built and yields each with the clock's reading; prints why one failed."""
    for row in rows:
        try:
            yield measure(row)
        except Exception as error:  # a model that this version of its library lacks, or an operator without a rule
            print(f"failed: {row.name}: {type(error).__name__}: {str(error)[:150]}", flush=True)


def run_fit(words: list[str]) -> None:
    """Runs the half "fit", prints each time and stores it at once."""
    chosen = [row for row in buildable("fit") if not words or any(word in row.name for word in words)]
    for one in run(chosen):
        fitted.store(one)
        print(f"{one.row.name}: {one.reading.seconds * 1000:.4g} ms, published {one.real * 1000:.4g} ms", flush=True)


def buildable(half: str) -> list[Row]:
    """Returns the rows of a half that can be built and state their time."""
    return [row for row in published.rows() if row.half == half and row.seconds and can_be_built(row)]


def main() -> None:
    """Runs the command and prints the table."""
    folder, *words = sys.argv[1:]
    sys.path += [folder, str(Path(__file__).parents[2] / "notebooks")]
    warnings.simplefilter("ignore")
    published_models.load()
    compared = []
    if words == ["--kept-out"]:
        compared = list(run(buildable("kept out")))
        time_bias.store_kept_out(compared, estimates.factors())
    else:
        run_fit(words)
    compared = [*fitted.stored(), *compared]
    print(table((one.row, one.reading.seconds / one.real) for one in compared))


if __name__ == "__main__":
    main()
