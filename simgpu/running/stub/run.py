"""Runs a script on the stub engine, in a Python process of its own, and makes the report of what that process wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import simgpu
from simgpu.distributed.world import PER_NODE
from simgpu.engines import Choice
from simgpu.gpus import specs
from simgpu.gpus.cublas_workspace import cublas_workspace_bytes
from simgpu.report import folder
from simgpu.report.files import REMOVED, File
from simgpu.report.findings import Facts, findings
from simgpu.report.growth import Grown
from simgpu.report.placeholder_values import ON_STUB, sentence
from simgpu.report.replays import Attempt
from simgpu.report.report import Line, Report, Spot
from simgpu.report.sizes import size
from simgpu.report.track import Track
from simgpu.report.verdict import OUT_OF_MEMORY, STOPPED
from simgpu.running.endings import End
from simgpu.running.files import kept_apart
from simgpu.running.script import Script
from simgpu.running.stub import times
from simgpu.running.stub.history import FORWARD
from simgpu.running.stub.launches import shorten
from simgpu.running.stub.reads import A_VALUE, BRANCH_OF, SIZE_OF
from simgpu.running.stub.rnn import RECURRENT
from simgpu.stub import engine, nvidia_smi
from simgpu.stub.engine import Engine
from simgpu.unmodeled import CUDNN, CUDNN_RNN, CUFFT, CUSPARSE, SOLVERS

ROOT = Path(__file__).parents[3]
WORKSPACES = {"libcudnn": CUDNN, "libcufft": CUFFT, "libcusolver": SOLVERS, "libcusparse": CUSPARSE}
"""Libraries whose workspaces only a GPU knows, by the name of their stub."""
NOT_MODELLED = WORKSPACES | {RECURRENT: CUDNN_RNN}

LOWER = (
    "when work on other streams ends: here at once, the lower bound; with MOCK_COMPLETION=sync in the environment late"
)
UPPER = "when work on other streams ends: here when the host next waits for it, the upper bound (MOCK_COMPLETION=sync)"
"""Notes on a program whose memory may depend on when asynchronous work ends."""
LOOK = 1.0
"""Seconds between looks at the trace of a process that runs."""


def run(
    program: str | None,
    arguments: Sequence[str] = (),
    *,
    chosen: Choice,
    gpu: str = "A100-80GB",
    module: str | None = None,
    steps: int | None = None,
    backward_passes: int | None = None,
    memory: int | None = None,
    out: Path | None = None,
    ranks: int | None = None,
    rank: int | None = None,
    per_node: int | None = None,
    command: str = "",
) -> Report:
    """Runs a script or a module on an engine, and reports its memory; arguments as in `simgpu.run`. `command`: what the
    report names.

    The program's output is its own. Raises ValueError for an unknown GPU, ScriptError where there is no such program,
    and EngineError where the stub libraries cannot be compiled.
    """
    Script(program, arguments, module)  # there is such a script
    spec = specs.spec(gpu)
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
            "backward_passes": backward_passes,
            "memory": {"capacity": memory or spec.total_memory, "context": spec.context},
            "ranks": ranks,
            "rank": rank or 0,
            "per_node": nodes,
            "runtime": str(next(stubs.glob("libcudart.so.*"))),
            "workspaces": _workspaces(spec, build.version),
            "libraries": {base: str(path) for base in WORKSPACES for path in stubs.glob(f"{base}.so.*")},
            "snapshot": None if out is None else str(out / folder.SNAPSHOT),
            "gpu": spec.key,
            "launches": str(Path(scratch, "launches")),
            "result": str(Path(scratch, "result.json")),
        }
        path, records = Path(scratch, "job.json"), Path(scratch, "processes")
        records.mkdir()
        Path(job["launches"]).mkdir()
        environ = _environment(build, stubs, gpu, memory, job)
        job["caches"] = [str(engine.home()), environ["TORCHINDUCTOR_CACHE_DIR"], environ["TRITON_CACHE_DIR"]]
        job["caches"].append(job["launches"])
        path.write_text(json.dumps(job))
        words = [sys.executable, "-m", "simgpu.running.stub.child", str(path)]
        environ["MOCK_RECORDS"] = str(records)
        process = subprocess.Popen(words, env=environ)
        status = _waited(process, Path(job["launches"]))
        others = _others(records, process.pid, nodes)
        found = _result(Path(job["result"]), status)
        written = tuple(row for row in apart.finish() if not _of_a_compiler(row, path))
    what = f"-m {module}" if module else Path(str(program)).name
    report = _report(found, spec, memory or spec.total_memory, what, chosen, ranks)
    report = _with_others(replace(report, files=written, command=command), others, (rank or 0) % nodes)
    if ranks is not None:
        report = replace(report, rank=(rank or 0, ranks))
    return report if out is None else folder.described(out, report)


def _environment(chosen: Engine, stubs: Path, gpu: str, memory: int | None, job: dict) -> dict[str, str]:
    """The environment of the process: the user's own, and what the engine needs."""
    device = engine.device(chosen, stubs, gpu)
    if memory is not None:
        device["MOCK_TOTAL"] = str(memory)
    device["MOCK_NDEV"] = str(job["per_node"])
    environ = engine.paths(chosen, stubs, {**os.environ, **device}, str(ROOT))
    environ = {**engine.caches(chosen), **environ}
    environ["PATH"] = os.pathsep.join([str(nvidia_smi.folder()), environ.get("PATH", os.defpath)])
    if job["ranks"] is not None:
        from simgpu.stub import world

        environ |= world.variables(job["rank"], job["ranks"], job["per_node"])
    return environ


def _workspaces(spec: specs.Spec, version: str) -> list[int]:
    """Bytes of cuBLAS's workspace on this GPU and version of torch."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    torch_version = (numbers[0], numbers[1]) if len(numbers) == 2 else (2, 13)
    return [cublas_workspace_bytes(spec.compute_capability, torch_version)]


def _waited(process: subprocess.Popen, traces: Path) -> int:
    """Waits for the process, and returns its exit status. Ctrl-C of a terminal interrupts it too; another interrupt is
    handed on. Any other exception here, such as that of a time limit, ends the process and is raised."""
    while True:
        try:
            return _status(process, traces)
        except KeyboardInterrupt:
            if not _in_the_foreground():
                process.send_signal(signal.SIGINT)
        except BaseException:
            process.kill()
            process.wait()
            raise


def _status(process: subprocess.Popen, traces: Path) -> int:
    """Waits for the process, and returns its exit status. Its traces in the folder `traces` do not fill the disk."""
    while True:
        try:
            return process.wait(LOOK)
        except subprocess.TimeoutExpired:
            for trace in traces.iterdir():
                shorten(trace)


def _in_the_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _result(path: Path, status: int) -> dict:
    """Returns what the process wrote. A process that wrote nothing was ended by a signal or by os._exit."""
    if path.exists():
        return json.loads(path.read_text())
    if status < 0:
        text = f"signal {signal.Signals(-status).name} ended its process"
    else:
        text = f"its process ended with status {status}, without coming to Python's end (os._exit)"
    return {**asdict(End(STOPPED, text)), "error": "", "used": False}


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
    """Returns the most bytes that processes of the program have used, by device; the stubs write it down."""
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


def _report(found: dict, spec: specs.Spec, total: int, what: str, chosen: Choice, ranks: int | None = None) -> Report:
    ending = found["ending"]
    at, failure = found.get("at"), found.get("failure")
    if ending == OUT_OF_MEMORY and failure is None:
        failure = [0, 0]
    notes = []
    if found.get("forgotten"):
        notes.append(f"the first {found['forgotten']:,} allocations, which are older than the history that was kept")
    if "incomplete" in found:
        last = found["incomplete"].strip().splitlines()[-1]
        notes.append(f"the parts and lines, because they could not be found out: {last}")
    if found.get("streams") or ranks is not None:
        notes.append(UPPER if os.environ.get("MOCK_COMPLETION") == "sync" else LOWER)
    called = found.get("libraries", ())
    reads = found.get("reads", ())
    sizes = tuple((what, place, times, what != A_VALUE) for what, place, decides, times in reads if decides == SIZE_OF)
    bounds = (*found.get("bounds", ()), *((sentence(sizes, ON_STUB),) if sizes else ()))
    report = Report(
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
        lines=tuple(Line(*row[:-1], stack=tuple(row[-1])) for row in found.get("lines", ())),
        timeline=None if found.get("timeline") is None else Track.load(found["timeline"]),
        version=simgpu.__version__,
        unmodeled=_not_modelled(called),
        steps=found.get("steps", 0),
        ended=found["text"],
        smallest=found.get("smallest"),
        compared=found.get("compared", ""),
        to_come=_to_come(found),
        interrupted=found.get("interrupted", False),
        failure=None if failure is None else (failure[0], failure[1], found["error"]),
        caught=found.get("failures", 0) - (ending == OUT_OF_MEMORY) if found.get("failures") else 0,
        placeholder_values=tuple((what, place, times) for what, place, _, times in reads),
        sizes=sizes,
        branches=tuple((what, place, times) for what, place, decides, times in reads if decides == BRANCH_OF),
        notes=tuple(notes),
        bounds=bounds,
        engine=str(chosen),
        **times.fields(found.get("times", {}), spec.key),
    )
    return replace(report, findings=findings(_facts(found, report)))


def _facts(found: dict, report: Report) -> Facts:
    """Returns the facts for the findings, as far as PyTorch's memory history holds it."""
    failing = found.get("failing", {}) if report.ending == OUT_OF_MEMORY else {}
    return Facts.from_report(
        report,
        model=failing.get("model", 0),
        building=failing.get("building", False),
        dtypes=Counter(found.get("dtypes", {})),
        autocast=failing.get("autocast", False),
        grown=[Grown(_Origin(text, place), blocks, size) for text, place, blocks, size in found.get("grown", ())],
        attempts=[Attempt(*one) for one in found.get("attempts", ())],
        steps=tuple((allocated, reserved) for allocated, reserved in found.get("steps_sizes", ())),
    )


@dataclass(frozen=True)
class _Origin:
    """The call and the line that allocate what grows."""

    operator: str
    place: str

    def __str__(self) -> str:
        return self.operator


def _to_come(found: dict) -> str:
    """Why the program is known to need more than the request that failed, "" if it is not."""
    failing, at = found.get("failing"), found.get("at")
    if found["ending"] != OUT_OF_MEMORY or not failing or at is None:
        return ""
    if failing["building"]:
        return "the model was not complete"
    if at["stage"] == FORWARD and failing["recorded"] and found["dtypes"]:
        return "the forward pass was not complete"
    return "" if at["stage"] == FORWARD or found["steps"] else "the first optimizer step was not complete"


def _not_modelled(called: Iterable[str]) -> str:
    """Says what is not modelled of a program that called these libraries, "" if it called none.

    A network that ran without cuDNN may use more or less than with it, and workspaces are only missing.
    """
    names = [NOT_MODELLED[base] for base in called]
    how = "about" if RECURRENT in called else "at least"
    return f"{how}: without {', '.join(names)}" if names else ""
