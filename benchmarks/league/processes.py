"""Asks each tool in a process of its own, the tools that run the steps once a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.league.answer import GPUS, Answer
from benchmarks.league.asking import RUN
from tools.oracle import run


def asked(tool: str, names: Iterable[str]) -> dict[str, Answer]:
    """The tool's answers by workload. Raises RuntimeError with its process's own errors where that fails."""
    if tool not in RUN:
        return _process(tool, GPUS, names)
    merged: dict[str, Answer] = {}
    for gpu in GPUS:
        for name, answer in _process(tool, (gpu,), names).items():
            known = merged.setdefault(name, answer)
            known.peak |= answer.peak
            known.fits |= answer.fits
            known.refused = known.refused or answer.refused
    return merged


def _process(tool: str, gpus: tuple[str, ...], names: Iterable[str]) -> dict[str, Answer]:
    environ = run.environment(run.DEFAULT_VERSION, gpus[0]) if tool == "oracle" else run.here(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "answers.json")
        command = [sys.executable, "-m", "benchmarks.league.asking", tool, str(file), *gpus, *names]
        done = subprocess.run(command, env=environ, cwd=run.ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{tool} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return {name: Answer(**answer) for name, answer in json.loads(file.read_text()).items()}


def installed(package: str) -> str | None:
    """Its version, "" for what needs none, None if it is not installed."""
    if not package:
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
