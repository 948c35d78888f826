"""Runs the stored workloads on both sides of a version of torch, and keeps what each differs in until the code changes.

A result is a small file, so a run that was interrupted continues where it stopped. The oracle's traces are kept too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from simgpu.recording.trace import Trace
from tools.oracle import run, store
from tools.oracle.drift.causes import Difference, of_comparison, of_error
from tools.oracle.drift.names import code_digest
from tools.oracle.report import Comparison

IN_ONE_GO = 40
"""Workloads that one worker runs: an interrupted run keeps what is done, and starting a worker costs 10 s."""


def sample(names: Collection[str], size: int | None) -> list[str]:
    """All names, or `size` of them, always the same: those whose hashes are lowest, so that a larger sample has the
    smaller one in it. Raises ValueError for a size below 1."""
    if size is None:
        return list(names)
    if size < 1:
        raise ValueError(f"--sample {size}: one workload or more")
    chosen = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:size]
    return [name for name in names if name in chosen]


def differences(
    names: Collection[str], gpu: str, version: str, known_operators: Collection[str], fresh: bool = False
) -> Iterator[tuple[str, Difference | None]]:
    """Of each workload its name and what it differs in; None where the oracle itself failed.

    `fresh`: the oracle and the simulated GPU run again, whatever is kept.
    """
    folder = run.home() / "drift" / version / gpu / code_digest()
    folder.mkdir(parents=True, exist_ok=True)
    waiting = []
    for name in names:
        kept = None if fresh else _load(folder / f"{name}.json")
        if kept is None:
            waiting.append(name)
        else:
            yield name, kept
    for at in range(0, len(waiting), IN_ONE_GO):
        for name, found in _run(waiting[at : at + IN_ONE_GO], gpu, version, folder, known_operators, fresh):
            if found is not None:
                (folder / f"{name}.json").write_text(json.dumps(found._asdict()), encoding="utf-8")
            yield name, found


def _load(path: Path) -> Difference | None:
    try:
        return Difference(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _run(
    names: list[str], gpu: str, version: str, folder: Path, known_operators: Collection[str], fresh: bool
) -> Iterator[tuple[str, Difference | None]]:
    def compared(outcome: tuple[Trace, Trace] | str) -> Difference | None:
        if isinstance(outcome, str):
            side, _, log = outcome.partition(": ")
            return None if "oracle" in side else of_error(log)
        return of_comparison(Comparison(*outcome), known_operators)

    for name, outcome in store.pairs(names, gpu, version, fresh, run.simulated_on(version)):
        yield name, compared(outcome)
