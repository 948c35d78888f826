"""One mutant: a copy of the project with the change, and a process in which the tests run until one fails."""

import compileall
import contextlib
import faulthandler
import importlib
import json
import os
import py_compile
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401  (here, so that no trial has to import it)
import pytest
import torch  # noqa: F401

from tools.mutants.changes import Change

OURS = ("tools", "simgpu", "labkit", "tests", "conftest")
IMPORTED = "imported.txt"
MEMORY = 12 * 2**30
"""Bytes that a trial may take."""
FIRST = 8
"""Tests that are run before the others are even imported: most mutants are killed by them."""


@dataclass(frozen=True)
class Result:
    """What the tests said to a change: `killer` is the test that failed, or what else ended the trial; None if none."""

    change: Change
    killer: str | None
    tests: int
    seconds: float

    def __str__(self):
        if self.killer is not None:
            verdict = f"killed in {self.seconds:.0f} s by {self.killer}"
        else:
            verdict = f"SURVIVED {self.tests} tests in {self.seconds:.0f} s" if self.tests else "SURVIVED: in no test"
        return f"{self.change}\n    {verdict}"


class Chosen:
    """A plugin of pytest that runs the chosen tests in their order, and ends the process if one takes far too long."""

    def __init__(self, tests: Sequence[str], seconds: dict[str, float], said: Path):
        self.order = {test: at for at, test in enumerate(tests)}
        self.seconds = seconds
        self.said = said

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.said.write_text(f"{item.nodeid} (does not end)")
        faulthandler.dump_traceback_later(60 + 10 * self.seconds[item.nodeid], exit=True)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.said.write_text("")

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed = f"{report.nodeid} cannot be imported"


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of the files that git knows, with simgpu compiled; a change of one file of it is seen by its content."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for name in listed.stdout.splitlines():
            if (root / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                (tree / name).write_bytes((root / name).read_bytes())
        for package in ("simgpu", "labkit"):
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(tree / package, quiet=1, invalidation_mode=mode)
        yield tree


def tried(change: Change, tree: Path, tests: Sequence[str], seconds: dict[str, float], limit: float) -> Result:
    """Runs the tests on the copy `tree` with the change, until the first fails or `limit` seconds are over."""
    path = tree / change.file
    text, began, said = path.read_text(encoding="utf-8"), time.monotonic(), tree / "said.txt"
    path.write_text(change.of(text), encoding="utf-8")
    said.write_text("")
    _import_what_a_trial_did(tree / IMPORTED)
    try:
        child = os.fork()
        if child == 0:
            _run(tree, tests, seconds, said)
        status = _waited(child, limit)
    finally:
        path.write_text(text, encoding="utf-8")
    killer = said.read_text() or (None if status == 0 else f"the process ended with status {status}")
    if status is None:
        killer = None  # all that ran in the time allowed passed
    return Result(change, killer, len(tests), time.monotonic() - began)


def _waited(child: int, limit: float) -> int | None:
    """The exit status of a process, or None if it was ended because the time was over."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(tree: Path, tests: Sequence[str], seconds: dict[str, float], said: Path) -> None:
    """What the child does: it does not come back."""
    status = 70
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        out = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(out, number)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        os.chdir(tree)
        sys.path[:] = [str(tree), *(path for path in sys.path if path and not (Path(path) / "simgpu").exists())]
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        for part in filter(None, (tests[:FIRST], tests[FIRST:])):
            chosen = Chosen(part, seconds, said)
            files = list(dict.fromkeys(test.partition("::")[0] for test in part))
            options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
            status = int(pytest.main([*options, *files], plugins=[chosen]))
            _note_what_is_imported(said.with_name(IMPORTED))
            if status:
                said.write_text(getattr(chosen, "failed", f"pytest ended with status {status}"))
                break
    finally:
        os._exit(status)


def _note_what_is_imported(path: Path) -> None:
    """Writes the names of the foreign modules that a trial has imported."""
    names = [name for name in list(sys.modules) if name.partition(".")[0] not in OURS and not name.startswith("_")]
    path.write_text("\n".join(names))


def _import_what_a_trial_did(path: Path) -> None:
    """Imports here what the last trial imported, so that those to come need not."""
    for name in path.read_text().split() if path.exists() else ():
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def as_json(results: Sequence[Result]) -> str:
    return json.dumps([{**vars(one), "change": vars(one.change)} for one in results], indent=1)


def survivors(text: str) -> list[Change]:
    """The changes that no test noticed, of what `as_json` wrote."""
    changes = [one["change"] for one in json.loads(text) if one["killer"] is None]
    return [Change(**{**one, "statement": tuple(one["statement"])}) for one in changes]
