"""What the oracle did in the workloads of many ranks, kept small: `python -m tools.oracle.rank_digests [--keep]`.

Of each stage: a hash of the events so far (what, how many bytes, which block), one of all counters, and the counters
that people look at. Tests hold the simulated GPU to them; `python -m tools.oracle compare` shows where one differs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from simgpu.recording.trace import Trace
from tools.oracle import run
from tools.oracle.workloads import ranks

FILE = run.ROOT / "tests" / "data" / "oracle_ranks.json.gz"
FORMAT = 1
GPU = "H100"
COUNTERS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.current",
    "allocation.all.allocated",
    "segment.all.current",
)
UNSTEADY = ("zero_bubble", "zbv", "ddp_fp16_hook", "ddp_bf16_hook", "ddp_power_sgd")
"""Kinds that free in another order in each run of the oracle: split backward goes through sets of autograd's nodes,
whose order is that of addresses (torch/distributed/pipelining/_backward.py); and what DDP's hooks send is let go when
NCCL's watchdog looks, which on a busy machine is in the middle of a backward pass (distributed/nccl_memory.py)."""


class Stage(NamedTuple):
    """A stage: its name, the number of events before it, the two hashes, the values of COUNTERS (bytes; numbers)."""

    name: str
    at: int
    events: str
    stats: str
    counters: tuple[int, ...]


def names() -> list[str]:
    """The workloads that are kept: all, but for those that no two runs of the oracle do alike."""
    return [name for name in ranks.WORKLOADS if not name.startswith(tuple(ranks.PREFIX + kind for kind in UNSTEADY))]


def digest(trace: Trace) -> list[Stage]:
    """The stages of a trace. Segments' events are left out of the hash: their number and bytes are counters."""
    found, hashed, done = [], hashlib.sha256(), 0
    for stage in trace.stages:
        for event in trace.events[done : stage.at]:
            if not event.action.startswith("segment"):
                hashed.update(f"{event.action} {event.size} {event.block}\n".encode())
        done = stage.at
        stats = json.dumps(sorted((key, value) for key, value in stage.stats.items() if value))
        values = tuple(stage.stats.get(key, 0) for key in COUNTERS)
        count = sum(not event.action.startswith("segment") for event in trace.events[:done])
        found.append(
            Stage(stage.name, count, hashed.hexdigest()[:12], hashlib.sha256(stats.encode()).hexdigest()[:12], values)
        )
    return found


def difference(expected: list[Stage], actual: list[Stage]) -> str:
    """What the first stage is that differs, and in what; "" if none does."""
    if [stage.name for stage in expected] != [stage.name for stage in actual]:
        return "other stages"
    for ours, theirs in zip(expected, actual, strict=True):
        named = zip(COUNTERS, ours.counters, theirs.counters, strict=True)
        differing = [f"{key} {here - there:+}" for key, there, here in named if here != there]
        if differing:
            return f"at {ours.name!r}: {', '.join(differing)}"
        if (ours.at, ours.events) != (theirs.at, theirs.events):
            return f"before {ours.name!r}: other events"
        if ours.stats != theirs.stats:
            return f"at {ours.name!r}: other counters"
    return ""


def load() -> tuple[dict, dict[str, tuple[str, list[Stage]]]]:
    """The provenance, and of each workload its source and its stages. Raises ValueError for another format."""
    content = json.loads(gzip.decompress(FILE.read_bytes()))
    if content["format"] != FORMAT:
        raise ValueError(f"{FILE}: format {content['format']}, wanted {FORMAT}")
    kept = {
        name: (source, [Stage(*stage[:4], tuple(stage[4])) for stage in stages])
        for name, (source, stages) in content["workloads"].items()
    }
    return content["provenance"], kept


def save(kept: dict[str, tuple[str, list[Stage]]], provenance: dict) -> None:
    """Write them."""
    content = {"format": FORMAT, "provenance": provenance, "counters": COUNTERS, "workloads": kept}
    FILE.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))


def simulated(wanted: Iterable[str]) -> dict[str, list[Stage] | str]:
    """What the simulated GPU does in these workloads, or the log of one that it could not run."""
    found: dict[str, list[Stage] | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, log in run.record(wanted, GPU, Path(folder), quick=True):
            found[name] = log if log is not None else digest(Trace.load(Path(folder, f"{name}.json.gz")))
    return found


def on_oracle(wanted: Iterable[str], version: str) -> tuple[dict[str, tuple[str, list[Stage]]], dict]:
    """What the oracle does in them, with the provenance. Raises RuntimeError for one that it cannot run."""
    found, provenance = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, log in run.record(wanted, GPU, Path(folder), version=version, quick=True):
            if log is not None:
                raise RuntimeError(f"{name} on the oracle:\n{log}")
            trace = Trace.load(Path(folder, f"{name}.json.gz"))
            found[name] = (trace.provenance["source"], digest(trace))
            provenance = {key: trace.provenance[key] for key in ("gpu", "torch", "made by", "made on")}
    return found, provenance


def main() -> int:
    """Ask the oracle, compare, and keep what it said if told to."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.rank_digests", description=__doc__)
    parser.add_argument("--torch", default=run.DEFAULT_VERSION)
    parser.add_argument("--keep", action="store_true", help=f"in {FILE.relative_to(run.ROOT)}")
    options = parser.parse_args()
    kept, provenance = on_oracle(names(), options.torch)
    different = 0
    for name, stages in simulated(kept).items():
        said = stages.strip().splitlines()[-1] if isinstance(stages, str) else difference(kept[name][1], stages)
        different += bool(said)
        print(f"DIFFERS  {name} {said}" if said else f"EQUAL    {name}", flush=True)
    print(f"{len(kept) - different} of {len(kept)} equal")
    if options.keep:
        save(kept, provenance)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
