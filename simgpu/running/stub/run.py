"""Runs a script on the stub engine, in a Python process of its own, and makes the report of what that process wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from simgpu.engines import Choice
from simgpu.hardware import gpus
from simgpu.hardware.cublas_workspace import cublas_workspace_bytes
from simgpu.left_out import CUDNN, CUFFT, SOLVERS
from simgpu.ranks.world import PER_NODE
from simgpu.report import folder
from simgpu.report.files import REMOVED, File
from simgpu.report.report import Line, Report, Spot
from simgpu.report.sizes import size
from simgpu.report.stand_ins import sentence
from simgpu.report.verdict import OUT_OF_MEMORY, STOPPED
from simgpu.running.files import kept_apart
from simgpu.running.script import Script
from simgpu.running.stub.reads import A_VALUE, BRANCH_OF, SIZE_OF
from simgpu.stub import engine, nvidia_smi
from simgpu.stub.engine import Engine

ROOT = Path(__file__).parents[3]
WORKSPACES = {"libcudnn": CUDNN, "libcufft": CUFFT, "libcusolver": SOLVERS}
"""Libraries whose workspaces only a GPU knows, by the name of their stub."""


def run(
    program: str | None,
    arguments: Sequence[str] = (),
    *,
    chosen: Choice,
    gpu: str = "A100-80GB",
    module: str | None = None,
    steps: int | None = None,
    memory: int | None = None,
    out: Path | None = None,
    ranks: int | None = None,
    rank: int | None = None,
    per_node: int | None = None,
) -> Report:
    """Runs a script or a module on an engine, and reports its memory; arguments as in `simgpu.run`.

    The program's output is its own. Raises ValueError for an unknown GPU, ScriptError where there is no such program,
    and EngineError where the stub libraries cannot be compiled.
    """
    Script(program, arguments, module)  # there is such a script
    spec = gpus.spec(gpu)
    build = chosen.stub
    assert build is not None
    stubs = build.stubs(extensions=True)
    nodes = min(per_node or PER_NODE, ranks) if ranks is not None else 1
    files_of = None if out is None else out / folder.FILES
    with tempfile.TemporaryDirectory(prefix="simgpu-") as scratch, kept_apart(files_of) as apart:
        job = {
            "program": program,
            "module": module,
            "arguments": [str(one) for one in arguments],
            "steps": steps,
            "ranks": ranks,
            "rank": rank or 0,
            "per_node": nodes,
            "runtime": str(next(stubs.glob("libcudart.so.*"))),
            "workspaces": _workspaces(spec, build.version),
            "libraries": {base: str(path) for base in WORKSPACES for path in stubs.glob(f"{base}.so.*")},
            "snapshot": None if out is None else str(out / folder.SNAPSHOT),
            "result": str(Path(scratch, "result.json")),
        }
        path, records = Path(scratch, "job.json"), Path(scratch, "processes")
        records.mkdir()
        environ = _environment(build, stubs, gpu, memory, job)
        job["caches"] = [str(engine.home()), environ["TORCHINDUCTOR_CACHE_DIR"], environ["TRITON_CACHE_DIR"]]
        path.write_text(json.dumps(job))
        command = [sys.executable, "-m", "simgpu.running.stub.child", str(path)]
        environ["MOCK_RECORDS"] = str(records)
        process = subprocess.Popen(command, env=environ)
        status = _waited(process)
        others = _others(records, process.pid, nodes)
        found = _result(Path(job["result"]), status)
        written = tuple(row for row in apart.finish() if not _of_a_compiler(row, path))
    what = f"-m {module}" if module else Path(str(program)).name
    report = _report(found, spec, memory or spec.total_memory, what, chosen)
    report = _with_others(replace(report, files=written), others, (rank or 0) % nodes)
    if ranks is not None:
        report = replace(report, rank=(rank or 0, ranks))
    return report if out is None else _written(out, report)


def _environment(chosen: Engine, stubs: Path, gpu: str, memory: int | None, job: dict) -> dict[str, str]:
    """The environment of the process: the user's own, and what the engine needs."""
    device = engine.device(chosen, stubs, gpu)
    if memory is not None:
        device["MOCK_TOTAL"] = str(memory)
    device["MOCK_NDEV"] = str(job["per_node"])
    environ = engine.paths(chosen, stubs, {**os.environ, **device}, str(ROOT))
    caches = engine.home() / "compiled" / chosen.version  # apart from a GPU's own, because nothing is timed here
    environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches / "inductor"))
    environ.setdefault("TRITON_CACHE_DIR", str(caches / "triton"))
    environ["PATH"] = os.pathsep.join([str(nvidia_smi.folder()), environ.get("PATH", os.defpath)])
    if job["ranks"] is not None:
        from simgpu.stub import world

        environ |= world.variables(job["rank"], job["ranks"], job["per_node"])
    return environ


def _workspaces(spec: gpus.Spec, version: str) -> list[int]:
    """Bytes of cuBLAS's workspace on this GPU and version of torch."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    torch_version = (numbers[0], numbers[1]) if len(numbers) == 2 else (2, 13)
    return [cublas_workspace_bytes(spec.compute_capability, torch_version)]


def _waited(process: subprocess.Popen) -> int:
    """Waits for the process, which gets an interrupt from the terminal too; its exit status."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _result(path: Path, status: int) -> dict:
    """What the process wrote. A process that wrote nothing was ended by a signal or by os._exit."""
    if path.exists():
        return json.loads(path.read_text())
    if status < 0:
        text = f"signal {signal.Signals(-status).name} ended its process"
    else:
        text = f"its process ended with status {status}, without coming to Python's end (os._exit)"
    return {"ending": STOPPED, "text": text, "error": "", "used": False}


def _of_a_compiler(row: File, started: Path) -> bool:
    """Whether a row of the report is of a temporary file that a program which the run started, such as ptxas, has made.

    The overlay cannot tell it from a file of the user's. It was removed in the run, so it is removed.
    """
    path = Path(row.path)
    if row.what != REMOVED or path.parent != Path(tempfile.gettempdir()) or not path.exists():
        return False
    if path.stat().st_mtime < started.stat().st_mtime:
        return False
    path.unlink()
    return True


def _others(records: Path, own: int, devices: int) -> list[list[int]]:
    """What the processes that the program started have used at most, in bytes by device; the stubs write it down."""
    found = []
    for path in sorted(records.iterdir(), key=lambda one: int(one.name)):
        used = [int(line) for line in path.read_text().split()[:devices]]
        if int(path.name) != own and any(used):
            found.append(used)
    return found


def _with_others(report: Report, others: list[list[int]], device: int) -> Report:
    """The report with the memory of other processes, as if all of them used their most at once."""
    here = [used[device] for used in others if used[device]]
    notes = list(report.notes)
    if others:
        shown = ", ".join(size(max(used)) for used in others[:8])
        each = "another process" if len(others) == 1 else f"{len(others)} other processes"
        notes.append(f"lines and parts of {each} that the program started, which used at most {shown}")
        report = replace(report, unused=f"except by {each} that the program started (--engine meta shows each)")
    return replace(report, nvidia_smi=report.nvidia_smi + sum(here), notes=tuple(notes))


def _report(found: dict, spec: gpus.Spec, total: int, what: str, chosen: Choice) -> Report:
    ending, text, steps = found["ending"], found["text"], found.get("steps", 0)
    if text == "steps":
        text = f"Ended after {steps} optimizer step{'s' * (steps != 1)}, as --steps says."
    at, failure = found.get("at"), found.get("failure")
    if ending == OUT_OF_MEMORY and failure is None:
        failure = [0, 0]
    notes = []
    if found.get("forgotten"):
        notes.append(f"the first {found['forgotten']:,} allocations, which are older than the history that was kept")
    if "incomplete" in found:
        last = found["incomplete"].strip().splitlines()[-1]
        notes.append(f"the parts and lines, because they could not be found out: {last}")
    called = found.get("libraries", ())
    reads = found.get("reads", ())
    sizes = tuple((what, place, times, what != A_VALUE) for what, place, decides, times in reads if decides == SIZE_OF)
    bounds = (sentence(sizes),) if sizes else ()
    return Report(
        what=what,
        gpu=spec.key,
        torch=found.get("torch", chosen.stub.version if chosen.stub else ""),
        total_memory=total,
        context=spec.context,
        ending=ending,
        peak=found.get("peak", 0),
        reserved=found.get("reserved", 0),
        nvidia_smi=found.get("most_used", 0),
        at=None if at is None else Spot(**{**at, "stack": tuple(at["stack"])}),
        parts=found.get("parts", {}),
        lines=tuple(Line(*row) for row in found.get("lines", ())),
        left_out=f"at least: without {', '.join(WORKSPACES[base] for base in called)}" if called else "",
        steps=steps,
        seconds=0.0,
        ended=text,
        failure=None if failure is None else (failure[0], failure[1], found["error"]),
        caught=found.get("failures", 0) - (ending == OUT_OF_MEMORY) if found.get("failures") else 0,
        stand_ins=tuple((what, place, times) for what, place, _, times in reads),
        sizes=sizes,
        branches=tuple((what, place, times) for what, place, decides, times in reads if decides == BRANCH_OF),
        notes=tuple(notes),
        bounds=bounds,
        engine=str(chosen),
    )


def _written(out: Path, report: Report) -> Report:
    """Writes the page and the report beside the snapshot."""
    snapshot = out / folder.SNAPSHOT
    said = (f"{snapshot}: open it at https://pytorch.org/memory_viz",) if snapshot.exists() else ()
    report = replace(report, written=said)
    report.save(out / folder.REPORT)
    (out / folder.PAGE).write_text(str(report), encoding="utf-8")
    return report
