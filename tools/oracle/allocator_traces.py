"""Short traces of PyTorch's own caching allocator, kept as test data of the model.

    python -m tools.oracle.allocator_traces                 # record WORKLOADS into tests/data/allocator_traces
    python -m tools.oracle.allocator_traces three_linear    # one of them

Each is a workload of `tools/oracle/workloads` on the oracle, from an empty allocator on. Unlike the traces that
`tools.oracle record` keeps, these have addresses: rows `[action, address, bytes]` in the order of the events,
addresses counted from the first segment's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path

from tools.oracle.run import DEFAULT_VERSION, ROOT, environment

STORED = ROOT / "tests" / "data" / "allocator_traces"
WORKLOADS = ("three_linear", "random_3", "random_4", "random_7")
GPU = "A100-80GB"
ACTIONS = ("alloc", "free_completed", "segment_alloc", "segment_free")


def record(workload: str) -> list[list]:
    """The events of a workload; only ever called inside the oracle."""
    import torch

    from tools.oracle.workloads import find

    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    find(workload)(lambda stage: None)
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    first = min(entry["addr"] for entry in trace if entry["action"] == "segment_alloc")
    return [[entry["action"], entry["addr"] - first, entry["size"]] for entry in trace if entry["action"] in ACTIONS]


def store(workload: str, version: str) -> Path:
    """Record a workload on the oracle and keep it. Raises RuntimeError with the output when it fails."""
    command = [sys.executable, "-m", "tools.oracle.allocator_traces", workload, "--on-oracle"]
    done = subprocess.run(command, env=environment(version, GPU), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the oracle failed on {workload}:\n{done.stderr[-3000:]}")
    content = {"torch": version, "gpu": GPU, "workload": workload, "events": json.loads(done.stdout)}
    path = STORED / f"{workload}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    return path


def main() -> None:
    """Record the workloads named on the command line."""
    parser = argparse.ArgumentParser(description="short traces of PyTorch's own allocator")
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--torch", default=DEFAULT_VERSION, help="the oracle's version")
    parser.add_argument("--on-oracle", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for workload in arguments.workloads:
        if arguments.on_oracle:
            print(json.dumps(record(workload)))
        else:
            path = store(workload, arguments.torch)
            print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
