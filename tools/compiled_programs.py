"""Runs public programs that compile, launch Triton kernels or load CUDA extensions: `python -m
tools.compiled_programs`.

The command writes docs/compiled_programs.md from docs/compiled_programs.json. `run CHECKOUTS [NAME ...]` first runs
programs on the stub engine and stores what came of them: the named ones, or those that have no figures yet. CHECKOUTS
is a folder with a checkout of each repository, named OWNER+NAME, which also holds the data that a record names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import simgpu
from simgpu.report.findings import CACHE
from simgpu.report.owners import WORKSPACES
from simgpu.report.report import Report
from simgpu.report.sizes import MIB
from simgpu.running.stub.history import ROUNDING

DOCS = Path(__file__).parents[1] / "docs"
FILE, PAGE = DOCS / "compiled_programs.json", DOCS / "compiled_programs.md"
GPU, STEPS = "H100", 2
SECONDS = 600  # that a program may run
NAMED = 0.95  # share of the bytes at the peak with a line, for a page to be called readable

HEAD = """\
# Programs that compile, launch Triton kernels or load CUDA extensions

Each row is a program from a public repository, which ran unmodified on the [stub engine](engines.md), as
`simgpu run --engine stub --gpu {gpu} --steps {steps}` with its own arguments. The engine is PyTorch's own CUDA build on
libraries that execute nothing, so these are not measurements on a GPU. Programs were chosen by what they use, before it
was known whether they run, and the quick ones ran first.

{summary}

*Lines* is the share of the bytes at the peak for which the page names a line outside of installed packages. Workspaces
of libraries and the rounding of blocks are not counted, because they belong to no line. *Compiled* says how many of the
page's rows of compiled code name a source line. *Adds up* says whether the parts of the peak add up to it.

`python -m tools.compiled_programs` writes this page from [compiled_programs.json](compiled_programs.json), and its
`run` repeats a program. Each record there has the commit, the arguments, and the made-up data.
"""
FIGURES = ("status", "outcome", "torch", "peak", "reserved", "steps", "ended")
TITLES = ("program", "uses", "outcome", "allocated, MiB", "reserved, MiB", "steps", "lines", "compiled", "adds up")


def measured(row: dict, checkouts: Path) -> dict:
    """Runs the program of a record; returns what its report says, and a status of None if its time was up."""
    os.chdir(checkouts / row["repository"].replace("/", "+") / row.get("folder", ""))
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(SECONDS)
    program, arguments = (None, row["arguments"]) if "module" in row else (row["arguments"][0], row["arguments"][1:])
    options = {"engine": "stub", "gpu": GPU, "steps": STEPS, "module": row.get("module"), **row.get("options", {})}
    try:
        report = simgpu.run(program, arguments, **options)
    except TimeoutError:
        return {"status": None}
    finally:
        signal.alarm(0)
    print(report, flush=True)
    return summary_of(report)


def _time_is_up(*_) -> None:
    raise TimeoutError


def summary_of(report: Report) -> dict:
    """What the table needs of a report: figures, and whether its page can be read."""
    placeless = report.parts.get(WORKSPACES, 0) + report.parts.get(ROUNDING, 0)
    named = sum(line.nbytes for line in report.lines if line.place and line.part != WORKSPACES)
    compiled = [line for line in report.lines if line.operator.startswith("compiled")]
    return {
        **{name: getattr(report, name) for name in FIGURES},
        "lines": round(named / (report.peak - placeless), 4) if report.peak > placeless else None,
        "compiled": [len(compiled), sum(bool(line.place) for line in compiled)],
        "adds_up": sum(size for name, size in report.parts.items() if name != CACHE) == report.peak,
    }


def run(checkouts: Path, names: list[str]) -> None:
    """Runs programs and stores what came of them, one after the other."""
    for name in names or [row["name"] for row in stored() if "here" not in row]:
        if not (found := [row for row in stored() if row["name"] == name]):
            raise SystemExit(f"{FILE} has no record named {name!r}")
        here = measured(found[0], checkouts)
        rows = [{**one, "here": here} if one["name"] == name else one for one in stored()]
        FILE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(json.dumps({"name": name, **here}), flush=True)


def stored() -> list[dict]:
    """The records of docs/compiled_programs.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def page() -> str:
    """The page."""
    rows = [row for row in stored() if "here" in row]
    figures = [row["here"] for row in rows if row["here"].get("peak")]
    readable = sum(bool(here["lines"] and here["lines"] >= NAMED and here["adds_up"]) for here in figures)
    outcomes = [_outcome(row) for row in rows]
    counted = ", ".join(f"{one}: {outcomes.count(one)}" for one in dict.fromkeys(sorted(outcomes)))
    sources, left = len({row["repository"] for row in rows}), len(stored()) - len(rows)
    text = (
        f"{len(rows)} programs from {sources} repositories were started. Outcomes and exit statuses:\n"
        f"{counted}. {len(figures)} of them used GPU memory. "
        f"In {readable} of these,\nthe page assigns at least {NAMED:.0%} of the bytes to lines, and its parts add up. "
        f"{left} further programs\nare in the file, and were not run yet."
    )
    table = ["| " + " | ".join(TITLES) + " |", "|---" * len(TITLES) + "|", *(_line(row) for row in rows)]
    parts = [HEAD.format(gpu=GPU, steps=STEPS, summary=text), "\n".join(table) + "\n"]
    reasons = [f"- **{row['name']}** ({_outcome(row)}): {row['why']}" for row in rows if row.get("why")]
    return "\n".join([*parts, "## What ended otherwise, and notes\n", *reasons, ""])


def _outcome(row: dict) -> str:
    here = row["here"]
    if here["status"] is None:
        return f"not ended after {SECONDS} s"
    return f"{here['outcome']} ({here['status']})"


def _line(row: dict) -> str:
    here, link = row["here"], f"https://github.com/{row['repository']}/tree/{row['commit']}/{row.get('folder', '')}"
    sizes = [f"{here[key] / MIB:,.1f}" if here.get("peak") else "" for key in ("peak", "reserved")]
    read = ["", "", ""]
    if here.get("peak"):
        compiled, placed = here["compiled"]
        lines = "" if here["lines"] is None else f"{here['lines']:.0%}"
        read = [lines, f"{placed} of {compiled}" if compiled else "", "yes" if here["adds_up"] else "no"]
    cells = [f"[{row['name']}]({link})", ", ".join(row["uses"]), _outcome(row), *sizes, str(here.get("steps", ""))]
    return "| " + " | ".join([*cells, *read]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.compiled_programs", description=__doc__)
    running = parser.add_subparsers(dest="command").add_parser("run", help="run programs, and store what came of them")
    running.add_argument("checkouts", type=Path)
    running.add_argument("name", nargs="*")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.checkouts.resolve(), arguments.name)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
