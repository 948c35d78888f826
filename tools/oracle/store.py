"""Traces of the oracle: kept in tests/data/oracle once recorded, others in a cache beside the oracle."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from unittest.mock import patch

from simgpu.recording.provenance import digest
from simgpu.recording.trace import Trace
from simgpu.stub import devices
from tools.oracle import run
from tools.oracle.build import home
from tools.oracle.report import Comparison
from tools.oracle.workloads import find
from tools.oracle.zoo import answers

RECORDED = run.ROOT / "tests" / "data" / "oracle"
EQUAL = RECORDED / "equal.txt"
SNIPPET = "code"  # the name under which a snippet of code is recorded
OF_THE_SIZE = (
    "MOCK_NAME",
    "MOCK_TOTAL",
    "MOCK_CTX",
    "MOCK_L2",
)  # what changes no events where memory suffices


def path(name: str, gpu: str) -> Path:
    """Where the recorded trace of a workload lies."""
    return RECORDED / gpu / f"{name}.json.gz"


def record(names: Iterable[str], gpu: str, version: str) -> Iterator[tuple[str, str | None]]:
    """Run the workloads on the oracle and keep their traces; of each its name, and its log if it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, log in run.record(names, gpu, Path(scratch), version=version):
            if log is None:
                path(name, gpu).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(scratch) / f"{name}.json.gz", path(name, gpu))
            yield name, log


def pairs(
    names: list[str], gpu: str, version: str, fresh: bool = False, simulated_on: str | None = None
) -> Iterator[tuple[str, tuple[Trace, Trace] | str]]:
    """Of each workload its name, and the oracle's and the simulated trace, or the log of a failure."""
    cache = home() / "traces" / version / gpu
    expected = {} if fresh else {name: stored(name, gpu, version) for name in names}
    failed = {}
    missing = [name for name in names if expected.get(name) is None]
    if missing:
        print(f"first {len(missing)} of {len(names)} workloads on the oracle", file=sys.stderr)
    for name, log in run.record(missing, gpu, cache, version=version):
        if log is None:
            expected[name] = Trace.load(cache / f"{name}.json.gz")
        else:
            failed[name] = f"on the oracle: {log}"
    with tempfile.TemporaryDirectory() as scratch:
        for name, log in run.record(names, gpu, Path(scratch), simulated_on=simulated_on):
            if name in failed:
                yield name, failed[name]
            elif log is not None:
                yield name, f"on the simulated GPU: {log}"
            else:
                yield name, (expected[name], Trace.load(Path(scratch) / f"{name}.json.gz"))


def pair_of_code(
    code: str, gpu: str, version: str, values: bool = False, simulated_on: str | None = None
) -> tuple[Trace, Trace] | str:
    """The oracle's and the simulated GPU's trace of a snippet, or the log of the side that failed.

    The simulated GPU runs first, with the values of all tensors if `values`: the oracle is given what it answers.
    `simulated_on`: the torch that it runs on, of those that are built as oracles; None for the installed one.
    """
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {answers.VARIABLE: folder}):
        scratch = Path(folder)
        ((_, log),) = run.record([], gpu, scratch, simulated_on=simulated_on, code=code, values=values)
        if log is not None:
            return f"on the simulated GPU: {log}"
        key = hashlib.sha256((code + (scratch / f"{SNIPPET}.answers.json").read_text()).encode()).hexdigest()[:16]
        cache = home() / "traces" / version / gpu / "snippets" / key
        if not (cache / f"{SNIPPET}.json.gz").exists():
            ((_, log),) = run.record([], gpu, scratch / "oracle", version=version, code=code)
            if log is not None:
                return f"on the oracle: {log}"
            cache.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(scratch / "oracle" / f"{SNIPPET}.json.gz", cache / f"{SNIPPET}.json.gz")
        expected, found = Trace.load(cache / f"{SNIPPET}.json.gz"), Trace.load(scratch / f"{SNIPPET}.json.gz")
        seen = Comparison(expected, found)
        if not seen.equal:  # it may be only that Python has looked at autograd's nodes
            ((_, log),) = run.record(
                [], gpu, scratch / "quick", simulated_on=simulated_on, code=code, quick=True, values=values
            )
            unseen = None if log is not None else Trace.load(scratch / "quick" / f"{SNIPPET}.json.gz")
            if unseen is not None and len(Comparison(expected, unseen).hunks) < len(seen.hunks):
                found = unseen
        return expected, found


def stored(name: str, gpu: str, version: str, cached: bool = True) -> Trace | None:
    """The recorded or else the cached trace, unless it is of another source, torch, transformers or GPU.

    `cached=False`: the recorded one only, so that what is found does not depend on the machine.
    """
    source = digest(find(name))
    for candidate in (path(name, gpu), *([home() / "traces" / version / gpu / f"{name}.json.gz"] if cached else ())):
        if not candidate.exists():
            continue
        trace = Trace.load(candidate)
        kept = trace.provenance
        wanted = {"source": source, **devices.environment(gpu)}
        del wanted["MOCK_KEY"]  # this project's name of the GPU, which the stub libraries do not answer with
        if "transformers" in kept:
            wanted["transformers"] = metadata.version("transformers")
        if not any(event.action == "oom" for event in trace.events):
            wanted = {key: value for key, value in wanted.items() if key not in OF_THE_SIZE}
        if kept["torch"].split("+")[0] == version and all(kept.get(key) == value for key, value in wanted.items()):
            return trace
    return None


def equal_of(version: str) -> Path:
    """The list of workloads that are known to be equal on torch `version`."""
    return EQUAL if version == run.DEFAULT_VERSION else EQUAL.with_name(f"equal-{version}.txt")


def known_equal(gpu: str, version: str = run.DEFAULT_VERSION) -> list[str]:
    """The workloads that the simulated GPU does exactly as the oracle of that version does, and must continue to do."""
    rows = (line.split() for line in equal_of(version).read_text(encoding="utf-8").splitlines())
    return [name for kept_gpu, name in rows if kept_gpu == gpu]


def keep_equal(gpu: str, names: Iterable[str], version: str = run.DEFAULT_VERSION) -> list[str]:
    """Add to those; returns what was not among them yet."""
    path = equal_of(version)
    rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    new = [row for row in (f"{gpu} {name}" for name in names) if row not in rows]
    path.write_text("".join(f"{row}\n" for row in sorted({*rows, *new})), encoding="utf-8")
    return new
