"""Record what this machine's GPU allocates, and how fast it is, to compare the simulated GPU with it.

    python -m simgpu.record                         every workload, into recordings/, a folder for the GPU and torch
    python -m simgpu.record --only 'bert-base-*'    some of them
    python -m simgpu.record --list                  their names
    python -m simgpu.record --compare FOLDER        compare recordings with the simulated GPU of the same kind

Each workload runs in a separate process and writes one small file, which appears only when it is complete and is never
overwritten. So a run that was interrupted continues with the missing workloads. `--simulated H100 --out FOLDER` records
the simulated GPU instead, to try the recorder.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simgpu.allocator.out_of_memory import format_size
from simgpu.recording import provenance, replay, worker
from simgpu.recording.trace import Trace
from simgpu.recording.workloads import WORKLOADS

HOME = provenance.CHECKOUT / "recordings"
SUFFIX = ".json.gz"


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder of the recordings")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=["*"], help="names, * and ? allowed")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="compare recordings and end")
    parser.add_argument("--simulated", metavar="GPU", help="record this simulated GPU; wants --out")
    parser.add_argument("--commit", help="the commit of this simgpu, if it is not a git checkout")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one workload")
    options = parser.parse_args(argv)
    try:
        names = chosen(options.only)
        if options.list:
            print("\n".join(names))
        elif options.compare:
            compare(options.compare, names)
        else:
            return record(names, options)
    except (provenance.ProvenanceError, ValueError, OSError) as error:
        parser.exit(2, f"simgpu.record: {error}\n")
    return 0


def _need(*packages: str) -> None:
    """Raises ValueError if a package of the extra `record` is not installed."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise ValueError(f"recording needs {' and '.join(missing)}: pip install 'simgpu[record]'")


def chosen(patterns: Iterable[str]) -> list[str]:
    """Returns the names of the workloads that match. Raises ValueError for a pattern that matches no name."""
    unmatched = [each for each in patterns if not any(fnmatchcase(name, each) for name in WORKLOADS)]
    if unmatched:
        raise ValueError(f"no workload is called {', '.join(unmatched)}; --list has the names")
    return [name for name in WORKLOADS if any(fnmatchcase(name, each) for each in patterns)]


def record(names: list[str], options: argparse.Namespace) -> int:
    """Records the missing workloads; returns 1 if one failed.

    Raises ProvenanceError before anything runs if the recordings could not state their provenance, or belong elsewhere,
    and ValueError for a file in their folder that is not a recording.
    """
    _need("pynvml", "transformers")
    if options.simulated and options.out is None:
        raise ValueError("--simulated wants --out FOLDER")
    if options.out is None and not (provenance.CHECKOUT / "recordings").is_dir():
        raise ValueError("this simgpu is installed and not a checkout with a folder recordings: --out FOLDER is wanted")
    device = device_of(options)
    provenance.check(device)
    folder = options.out or HOME / folder_name(device)
    check_place(folder, device)
    kept = {path.name.removesuffix(SUFFIX): Trace.load(path) for path in sorted(folder.glob(f"*{SUFFIX}"))}
    for trace in kept.values():
        provenance.check_same(folder, trace.provenance, device)
    print(f"{device['gpu']}, torch {device['torch']}: {len(names)} workloads into {folder}")
    failed = []
    for at, name in enumerate(names, 1):
        path = folder / f"{name}{SUFFIX}"
        if name in kept:
            said = "kept"
        elif error := run_worker(name, path, device, options):
            failed.append(name)
            said = f"FAILED\n{error}"
        else:
            said = summary(Trace.load(path))
        print(f"{at:3} {name}: {said}", flush=True)
    size = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    print(f"{folder}: {size:,} B" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def device_of(options: argparse.Namespace) -> dict[str, object]:
    """Returns the provenance of the device, read in a separate process, so that this one never holds a context on
    it.
    """
    asked = subprocess.run(
        worker_command(options, *(["--commit", options.commit] if options.commit else [])),
        env=worker.environment_of(),
        capture_output=True,
        text=True,
    )
    if asked.returncode:
        raise provenance.ProvenanceError(
            f"the device cannot be identified: {(asked.stderr.strip().splitlines() or ['?'])[-1]}"
        )
    return json.loads(asked.stdout.splitlines()[-1])


def run_worker(name: str, path: Path, device: Mapping[str, Any], options: argparse.Namespace) -> str | None:
    """Records one workload; returns the end of its output if it failed, else None."""
    command = worker_command(options, name, str(path.absolute()), json.dumps(device))
    try:
        done = subprocess.run(
            command, env=worker.environment_of(name), capture_output=True, text=True, timeout=options.timeout
        )
    except subprocess.TimeoutExpired:
        return f"not done after {options.timeout} s"
    if done.returncode == 0:
        return None
    return "\n".join(done.stderr.strip().splitlines()[-12:]) or f"ended with status {done.returncode}"


def worker_command(options: argparse.Namespace, *arguments: str) -> list[str]:
    simulated = ["--simulated", options.simulated] if options.simulated else []
    return [sys.executable, "-m", "simgpu.recording.worker", *arguments, *simulated]


def folder_name(device: Mapping[str, Any]) -> str:
    """Returns the folder name for recordings of a GPU: "NVIDIA-H200-torch-2.13.0"."""
    return re.sub(r"[^\w.-]+", "-", f"{device['gpu']} torch {device['torch'].split('+')[0]}")


def check_place(folder: Path, device: Mapping[str, Any]) -> None:
    """Raises ProvenanceError if these recordings do not belong in recordings/: no GPU made them, or no commit."""
    if not folder.absolute().resolve().is_relative_to(HOME.resolve()):
        return
    if device["made by"] != provenance.GPU:
        raise provenance.ProvenanceError(f"recordings/ is for recordings of GPUs, and this is {device['made by']}")
    if str(device["commit"]).endswith(provenance.CHANGED):
        raise provenance.ProvenanceError(
            f"labkit differs from its commit {device['commit'].removesuffix(provenance.CHANGED)}: commit the changes, "
            "or record elsewhere with --out"
        )


def summary(trace: Trace) -> str:
    """Returns one line about a recording."""
    reserved = max((stage.stats.get("reserved_bytes.all.peak", 0) for stage in trace.stages), default=0)
    parts = [f"{len(trace.events)} events", f"peak {format_size(trace.peak)}", f"reserved {format_size(reserved)}"]
    parts += ["out of memory"] if trace.oom is not None else []
    parts += [f"step {trace.median_ms:.3f} ms"] if trace.step_ms else []
    return ", ".join(parts)


def compare(folder: Path, names: Iterable[str]) -> None:
    """Prints a table that compares the recordings of a folder with the simulated GPU's, and the differences in
    memory.
    """
    paths = [path for name in names if (path := folder / f"{name}{SUFFIX}").exists()]
    if not paths:
        raise ValueError(f"no recording of these workloads is in {folder}")
    _need("pandas")
    import pandas as pd

    replays = [replay.replay(Trace.load(path)) for path in paths]
    print(f"recorded by {replays[0].recorded.provenance['made by']}; simulated {replays[0].recorded.provenance['gpu']}")
    with pd.option_context("display.width", None, "display.max_rows", None, "display.max_columns", None):
        print(replay.table(replays).round(3).to_string())
    for one in replays:
        for difference in one.differences():
            print(f"{one.recorded.workload}: {difference}")


if __name__ == "__main__":
    sys.exit(main())
