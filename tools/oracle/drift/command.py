"""`python -m tools.oracle drift --torch X`: compares a version of torch with what the simulated GPU expects."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.oracle import run, store
from tools.oracle.drift import names, workloads
from tools.oracle.drift.causes import EQUAL, Difference, counts, grouped

WIDTH = 110


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `drift`, besides --torch and the workloads' names."""
    parser.add_argument("--sample", type=int, metavar="N", help="N workloads only, always the same N")
    parser.add_argument("--fresh", action="store_true", help="run both sides again, whatever is kept")
    parser.add_argument("--known", action="store_true", help="the workloads that are known to be equal on that version")
    parser.add_argument("--keep", action="store_true", help="add what is equal to tests/data/oracle/equal-X.txt")
    parser.add_argument("--no-names", action="store_true", help="do not compare names, signatures and operators")
    parser.add_argument("--names", action="store_true", help="compare names, signatures and operators only")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE.json or FILE.md too")


def do(options: argparse.Namespace, chosen: list[str]) -> int:
    """Compares and prints; the exit status is 1 where a workload differs. `chosen`: workloads by name.

    Raises FileNotFoundError where that version's oracle, or for the names that of `DEFAULT_VERSION`, is not built, and
    ValueError for another ending of --out than .json and .md.
    """
    if options.out is not None and options.out.suffix not in (".json", ".md"):
        raise ValueError(f"--out {options.out}: a name that ends in .json or .md")
    before = names.surface(run.DEFAULT_VERSION)
    result: dict[str, Any] = {"torch": options.torch, "compared with": run.DEFAULT_VERSION, "names": [], "gpus": {}}
    if not options.no_names:
        result["names"] = names.differences(before, names.surface(options.torch))
        print(_table(("cause", "what"), [(cause, what[:WIDTH]) for cause, what in result["names"]]), flush=True)
    if not options.names:
        known = names.operator_names(before)
        for gpu in options.gpu or ["A100-80GB"]:
            of_gpu = store.known_equal(gpu, options.torch) if options.known else chosen
            result["gpus"][gpu] = _of_gpu(workloads.sample(of_gpu, options.sample), gpu, options, known)
    if options.out is not None:
        text = json.dumps(result, indent=1) if options.out.suffix == ".json" else page(result)
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(
        any(one["counts"]["workloads"] > one["counts"]["equal in every event"] for one in result["gpus"].values())
    )


def _of_gpu(chosen: Sequence[str], gpu: str, options: argparse.Namespace, known: set[str]) -> dict[str, Any]:
    found: dict[str, Difference] = {}
    refused = []
    for at, (name, difference) in enumerate(workloads.differences(chosen, gpu, options.torch, known, options.fresh), 1):
        if difference is None:
            refused.append(name)
            continue
        found[name] = difference
        if options.keep and difference.cause == EQUAL:
            store.keep_equal(gpu, [name], options.torch)
        print(f"\r{gpu}: {at} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = [[cause, what, which] for cause, what, which in grouped(found)]
    result = {"counts": counts(found.values()), "differences": rows, "failed on the oracle": refused}
    print(f"\n{gpu}, torch {options.torch}: " + ", ".join(f"{key} {value}" for key, value in result["counts"].items()))
    if refused:
        print(f"failed on the oracle itself: {', '.join(refused)}")
    print(_table(("cause", "n", "first difference", "for example"), _rows(rows)))
    return result


def _rows(groups: Iterable[Sequence]) -> list[tuple[str, ...]]:
    return [
        (cause, str(len(which)), what[:WIDTH], ", ".join(which[:2]) + (", …" if len(which) > 2 else ""))
        for cause, what, which in groups
    ]


def page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"# PyTorch {result['torch']} compared with {result['compared with']}", ""]
    for gpu, one in result["gpus"].items():
        lines += [f"## Workloads on {gpu}", "", "| | |", "|---|---|"]
        lines += [f"| {key} | {value:,} |" for key, value in one["counts"].items()]
        lines += ["", "| cause | n | first difference | for example |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in _rows(one["differences"])]
        lines += [""]
    if result["names"]:
        lines += ["## Names, signatures and operators", "", "| cause | what |", "|---|---|"]
        lines += [f"| {cause} | `{_cell(what)}` |" for cause, what in result["names"]]
    return "\n".join(lines).rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "nothing differs"
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = (heads, ["-" * width for width in widths], *rows)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
