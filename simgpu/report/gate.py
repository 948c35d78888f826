"""A limit on memory: a simulated GPU that is watched, and what is said if more is taken than is allowed."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import torch

from simgpu.device import machine as machines
from simgpu.report import folder, page
from simgpu.report.findings import Finding, of_parts
from simgpu.report.report import Report, facts_of, report_of
from simgpu.report.sizes import capacity, parse, size
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY
from simgpu.report.watch import Watch
from simgpu.session import simulated_gpu

ON_STUB = "SIMGPU_TEST_ON_STUB"
"""The environment variable of a pytest that runs one test on the stub engine: no GPU is simulated in it."""

COUNTERS = {"peak": "allocates", "reserved": "reserves", "nvidia_smi": "shows in nvidia-smi"}


class Gate:
    """Inside the `with`, a simulated GPU is on, and its memory is watched.

    `peak`, `reserved`, `nvidia_smi`: the most bytes that are allowed, as numbers or like "12 GiB"; None for no limit.
    Raises ValueError for a GPU that is not known, and for a text that is not a size.
    """

    def __init__(self, gpu: str, peak=None, reserved=None, nvidia_smi=None, memory=None, values=False):
        self.limits = limits_of(peak, reserved, nvidia_smi)
        options = {"values": True} if values else {}
        self._gpu = simulated_gpu(gpu, None if memory is None else capacity(memory), **options)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Gate":
        self._stack.enter_context(self._gpu)
        self._watch = self._stack.enter_context(Watch(machines.on()))
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    def report(self, ending: str = COMPLETED) -> Report:
        """What was taken so far."""
        self._watch.close()
        return report_of(self._watch, "the test", ending)

    def ran_out(self, error: BaseException) -> bool:
        """Returns whether an error is PyTorch's out-of-memory error on this GPU."""
        return isinstance(error, torch.OutOfMemoryError) and self._watch.failure is not None

    def out_of_memory(self) -> str:
        """Returns the message for that error."""
        return str(self.report(OUT_OF_MEMORY))

    def above(self) -> str:
        """Returns the message if a limit is passed, "" if none is."""
        report = self.report()
        return above(report, self.limits, lambda: tuple(of_parts(facts_of(self._watch, report))))


def limits_of(peak=None, reserved=None, nvidia_smi=None) -> dict[str, int]:
    """Returns the limits in bytes, from numbers or texts like "12 GiB"; None for no limit. Or raises ValueError."""
    asked = {"peak": peak, "reserved": reserved, "nvidia_smi": nvidia_smi}
    return {name: parse(limit) for name, limit in asked.items() if limit is not None}


def on_stub(test: str, root: str, *, gpu: str, memory=None, values: bool = False, **limits) -> tuple[str, str]:
    """Runs one test, in a pytest of its own, on the stub engine. Returns how it ended, "passed", "failed" or "skipped",
    and what is said of it.

    `test`: its node's id, relative to `root`. `gpu`, `memory` and `limits` as in `Gate`. Raises ValueError as `Gate`
    does, and if `values` are asked for, which the stub engine does not compute.
    """
    allowed = limits_of(**limits)
    if values:
        raise ValueError("the stub engine computes no values; run this test with --gpu-engine meta")
    with tempfile.TemporaryDirectory(prefix="simgpu-") as place:
        out, results = Path(place, "out"), Path(place, "results.xml")
        command = [sys.executable, "-m", "simgpu", "run", "--engine", "stub", "--gpu", gpu, "--out", str(out)]
        command += [] if memory is None else ["--memory", str(memory)]
        command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--junitxml={results}"]
        environ = {**os.environ, ON_STUB: "1"}
        done = subprocess.run([*command, test], cwd=root, env=environ, capture_output=True, text=True)
        if not (out / folder.REPORT).exists():
            return "failed", done.stdout + done.stderr
        report = dataclasses.replace(Report.load(out / folder.REPORT), what="the test")
        skipped = ElementTree.parse(results).find(".//skipped") if results.exists() else None
    if report.ending == OUT_OF_MEMORY:
        return "failed", str(report)
    if not report.completed:
        return "failed", done.stdout.partition("\n─")[0]
    if skipped is not None:
        return "skipped", skipped.get("message", "")
    said = above(report, allowed)
    return "failed" if said else "passed", said


def above(report: Report, limits: dict[str, int], levers: Callable[[], tuple[Finding, ...]] = tuple) -> str:
    """Returns the message for a report that passes a limit, "" if it passes none.

    `levers()`: what would make the parts smaller.
    """
    said = []
    for name, limit in limits.items():
        over = getattr(report, name) - limit
        if over > 0:
            said.append(
                f"{over:,} B ({size(over)}) over the limit: on a simulated {report.gpu} the test "
                f"{COUNTERS[name]} {getattr(report, name):,} B ({size(getattr(report, name))}), and {name} allows "
                f"{limit:,} B ({size(limit)})."
            )
    if not said:
        return ""
    report = dataclasses.replace(report, findings=(*report.findings, *levers()))
    sections = ["\n".join(said), page.where(report), page.parts(report), page.lines(report), page.findings(report)]
    return "\n\n".join(filter(None, [*sections, page.not_modelled(report)]))
