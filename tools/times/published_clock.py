"""Compares the clock with the published rows: `python -m tools.times.published_clock FOLDER [--kept-out | WORD ...]`.

FOLDER holds timm and torchvision, as for `python -m tools.times run`. The times of the half "fit" are stored in
docs/published_times.json. With --kept-out the other half runs, and docs/time_estimates.md is written, which summarizes
both. No time of that half is printed or stored, so that no constant can be fitted to it. Other words run only rows that have one of them in their names.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

import labkit
from simgpu.clock.ranges import TRAINING, class_of, estimate, factors
from tools.times import published, published_models, published_shards
from tools.times.published import Row
from tools.times.rows import MEMORY

DOCS = Path(__file__).parents[2] / "docs"
FILE, PAGE = DOCS / "published_times.json", DOCS / "time_estimates.md"
TITLE = """# Estimates of time, and how wide their ranges are

`simgpu run` and `simgpu fit` print a time as an estimate with a range. No figure on this page was measured by us on a
GPU. The simulated clock counts operations and bytes and assumes constant rates ([times.md](times.md)), and real GPUs
are slower than it is in most kinds of work, above all in training on Hopper and Blackwell. So a time of the clock is
multiplied by a factor, and the range says where nine of ten real times are expected.

The factors are fitted to published times of models that this project can build
([recordings/published_times.yaml](../recordings/published_times.yaml)). The sources are divided into two halves by a
hash of their names. Only the half *fit* has a part in a factor or a range, and the half *kept out* tests them.
"""
FACTORS = """## Factors by kind

The factor is the mean of its sources' medians of real time ÷ clock, on a logarithmic scale. The range is a prediction
interval of 90 % for one row of a further source ([tools/times/ranges.py](../tools/times/ranges.py), which writes the
factors with `python -m tools.times.ranges`). A kind without rows has the factor of all rows of training or of inference.
"""
ROWS = """## Both halves

*Ratio* is the clock's time divided by the published one. *Error* is the median absolute error of the clock, and *error of
the estimate* that of the clock's time with its factor. *In its range* is the share of the rows whose published time is
inside the range of the estimate.
"""


def can_be_built(row: Row) -> bool:
    """Returns whether this project can build the model and the step of a row."""
    return published_models.builder(row) is not None or published_shards.builder(row) is not None


def measure(row: Row) -> float:
    """Returns the clock's seconds of the second step of a row.

    Raises ValueError if its model cannot be built.
    """
    torch._dynamo.reset()
    make = published_models.builder(row)
    with published_models.precision(row), labkit.simulated_gpu(row.simulated_gpu or "", total_memory=MEMORY):
        if make is None:
            with labkit.one_rank(0, of=row.gpus):
                torch.distributed.init_process_group("nccl")
                return published_shards.seconds(row, labkit.stopwatch)
        step = make(row)
        step()
        with labkit.stopwatch() as timing:
            step()
        return timing.seconds


def stored() -> dict[str, float]:
    """Returns the stored seconds by the rows' names."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def group(row: Row) -> tuple[str, str, str]:
    """Returns what a ratio is summarized by: kind, mode and class of GPU."""
    mode = "not stated" if row.mode is None else row.mode if row.mode == "eager" else "compiled"
    return row.kind, mode, class_of(row.simulated_gpu or "")


def table(ratios: Iterable[tuple[Row, float]]) -> str:
    """Returns ratios of the clock's to the published time, by group and half, as a table in Markdown.

    The last two columns are about the estimate: the clock's time times the fitted factor, and its range.
    """
    found: dict[tuple[str, ...], list[tuple[float, float, bool]]] = defaultdict(list)
    for row, ratio in ratios:
        of_one = estimate(ratio, row.simulated_gpu or "", row.kind == TRAINING, row.gpus)
        values = (ratio, of_one.middle, of_one.low <= 1 <= of_one.high)
        for key in (group(row), (row.kind, "all", group(row)[2]), (row.kind, "all", "all")):
            found[(row.half, *key)].append(values)
    lines = ["| half | kind | mode | GPUs | rows | median ratio | error | lowest | highest | error of the estimate | in its range |"]
    lines.append("| --- " * 11 + "|")
    for key, values in sorted(found.items()):
        clock, estimates, inside = zip(*values, strict=True)
        figures = f"{statistics.median(clock):.2f} | {_error(clock):.0%} | {min(clock):.2f} | {max(clock):.2f}"
        figures += f" | {_error(estimates):.0%} | {statistics.fmean(inside):.0%}"
        lines.append(f"| {' | '.join(key)} | {len(values)} | {figures} |")
    return "\n".join(lines)


def _error(ratios: Iterable[float]) -> float:
    """Returns the median absolute error of ratios to the published time."""
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def run(rows: Iterable[Row]) -> Iterator[tuple[Row, float]]:
    """Runs rows that can be built and yields each with the clock's seconds; prints why one failed."""
    for row in rows:
        try:
            yield row, measure(row)
        except Exception as error:  # a model that this version of its library lacks, or an operator without a rule
            print(f"failed: {row.name}: {type(error).__name__}: {str(error)[:150]}", flush=True)


def run_fit(words: list[str]) -> None:
    """Runs the half "fit", prints each time and stores it at once."""
    chosen = [row for row in buildable("fit") if not words or any(word in row.name for word in words)]
    for row, seconds in run(chosen):
        times = stored() | {row.name: float(f"{seconds:.5g}")}
        FILE.write_text(json.dumps(dict(sorted(times.items())), indent=0) + "\n", encoding="utf-8")
        print(f"{row.name}: {seconds * 1000:.4g} ms, published {row.seconds * 1000:.4g} ms", flush=True)


def buildable(half: str) -> list[Row]:
    """Returns the rows of a half that can be built and state their time."""
    return [row for row in published.rows() if row.half == half and row.seconds and can_be_built(row)]


def page(of_rows: str) -> str:
    """Returns docs/time_estimates.md with the factors and the table of both halves."""
    lines = ["| kind | factor | range | rows | sources |", "| --- | ---: | --- | ---: | --- |"]
    for kind, found in factors().items():
        sources = f"all of {found.of}" if found.of else ", ".join(found.sources)
        lines.append(f"| {kind} | {found.middle:.2f} | {found.low:.2f} to {found.high:.2f} | {found.rows} | {sources} |")
    return "\n".join([TITLE, FACTORS, *lines, "", ROWS, of_rows, ""])


def main() -> None:
    """Runs the command, and prints the table or writes it to the page."""
    folder, *words = sys.argv[1:]
    sys.path += [folder, str(FILE.parents[1] / "notebooks")]
    warnings.simplefilter("ignore")
    published_models.load()
    times: dict[str, float] = {}
    if words == ["--kept-out"]:
        times = {row.name: seconds for row, seconds in run(buildable("kept out"))}
    else:
        run_fit(words)
    times |= stored()
    known = [row for row in published.rows() if row.seconds and row.name in times]
    of_rows = table((row, times[row.name] / row.seconds) for row in known)
    if words == ["--kept-out"]:
        PAGE.write_text(page(of_rows), encoding="utf-8")
    print(of_rows)


if __name__ == "__main__":
    main()
