"""The processes that a program starts: their environment, their reports, and the names of those that are not simulated.

Every Python process that starts while a run is on finds two environment variables: PYTHONPATH begins with the folder
`startup`, whose sitecustomize.py simulates the GPU there, and SIMGPU_PROCESSES names a folder of the run. A process
that has used the GPU writes its report there when it ends. PATH begins with the folder of a program `nvidia-smi`, which
describes the simulated GPU.
"""

import ast
import contextlib
import dataclasses
import gc
import multiprocessing
import multiprocessing.process
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

from simgpu.device import machine as machines
from simgpu.device.machine import VISIBLE
from simgpu.distributed.world import world_of
from simgpu.patches import Patches
from simgpu.report.report import Report
from simgpu.report.sizes import size
from simgpu.running.startup import _simgpu_startup as startup
from simgpu.stub import devices, nvidia_smi, scripts

RECORDS = startup.RECORDS
PROGRAMS = "bin"
"""The folder of a run's folder that comes first on PATH."""
WAIT = 30.0
"""Seconds that a run waits for processes that are still running when its program has ended."""

_waits = threading.Event()


def environment(folder: str | Path, before=None) -> dict[str, str]:
    """Returns the variables with which a process is followed. `before`: the environment that this is added to."""
    path = (os.environ if before is None else before).get("PYTHONPATH", "")
    others = [one for one in path.split(os.pathsep) if one != startup.FOLDER] if path else []
    apart = {startup.FILES: os.environ[startup.FILES]} if startup.FILES in os.environ else {}
    programs = (os.environ if before is None else before).get("PATH", os.defpath).split(os.pathsep)
    if os.path.isdir(own := os.path.join(folder, PROGRAMS)) and own not in programs:
        apart["PATH"] = os.pathsep.join([own, *programs])
    return {"PYTHONPATH": os.pathsep.join([startup.FOLDER, *others]), RECORDS: str(folder), **apart}


def _gpus(settings: dict) -> int:
    """How many GPUs of a machine the program sees."""
    per_node, ranks = settings["per_node"], settings["ranks"]
    return per_node or 1 if ranks is None else world_of(0, ranks, per_node).local_ranks


def _write_nvidia_smi(folder: str, settings: dict) -> None:
    """Writes the program `nvidia-smi` of a run."""
    device = devices.environment(settings["gpu"]) | {"MOCK_NDEV": str(_gpus(settings)), "MOCK_USED": folder}
    if settings["memory"] is not None:
        device["MOCK_TOTAL"] = str(settings["memory"])
    given = [f"{name}={device[name]}" for name in ("MOCK_NAME", "MOCK_CC", "MOCK_TOTAL", "MOCK_NDEV", "MOCK_USED")]
    command = ["env", *given, sys.executable, "-I", "-S", nvidia_smi.__file__]
    scripts.write(Path(folder, PROGRAMS, "nvidia-smi"), shlex.join(command))


class Processes:
    """Inside the `with`, Python processes that the program starts are simulated, with these `settings`.

    `settings` are literals: the keyword arguments of `simulated_gpu`, and "steps".
    """

    def __init__(self, settings: dict) -> None:
        self.settings = settings
        self.folder = ""

    def __enter__(self) -> "Processes":
        self._children = set(multiprocessing.active_children())
        self.folder = tempfile.mkdtemp(prefix="simgpu-")
        version = list(sys.version_info[:2])
        about = {"prefix": sys.prefix, "python": version, "root": str(Path(__file__).parents[2])}
        about["visible"] = os.environ.get(VISIBLE)  # to the run: it concerns the GPUs of this machine
        Path(self.folder, "settings").write_text(ascii(self.settings | about))
        if os.name == "posix":
            _write_nvidia_smi(self.folder, self.settings)
        self._before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PATH", RECORDS)}
        os.environ.update(environment(self.folder))
        self._set = {name: os.environ.get(name) for name in self._before}
        return self

    def __exit__(self, *error) -> None:
        for name, before in self._before.items():
            if os.environ.get(name) != self._set[name]:  # the program has changed it
                if name in os.environ:
                    for own in (startup.FOLDER, os.path.join(self.folder, PROGRAMS)):
                        os.environ[name] = os.environ[name].replace(own + os.pathsep, "")
            elif before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        shutil.rmtree(self.folder, ignore_errors=True)

    def collect(self) -> "Found":
        """Waits for the processes that are still running, at most WAIT seconds, and reads what all have written."""
        self._join()
        deadline = time.monotonic() + WAIT
        while self._running() and time.monotonic() < deadline:
            _waits.wait(0.05)
        return Found(self._records(), self._running())

    def _join(self) -> None:
        """Does with the program's own processes what Python does when a program ends: daemons end, others are waited
        for (multiprocessing/util.py, _exit_function)."""
        started = [one for one in multiprocessing.active_children() if one not in self._children]
        if not started:
            return
        gc.collect()  # a pool that the program did not close ends with its last reference
        for one in started:
            if one.daemon:
                one.terminate()
        deadline = time.monotonic() + WAIT
        for one in started:
            one.join(max(0.0, deadline - time.monotonic()))
            if one.is_alive():
                one.terminate()
                one.join(1.0)

    def _records(self) -> dict[str, list[dict]]:
        """The records by their kind, the oldest first."""
        found: dict[str, list[dict]] = {}
        for path in sorted(Path(self.folder).glob("*-*.*"), key=lambda one: int(one.stem.split("-")[1])):
            if path.suffix not in (".part", ".json"):
                with contextlib.suppress(OSError, ValueError, SyntaxError):
                    about = ast.literal_eval(path.read_text(encoding="utf-8"))
                    if path.suffix == ".used":
                        about["report"] = Report.load(Path(about["report"]))
                    found.setdefault(path.suffix[1:], []).append(about)
        return found

    def _running(self) -> list[dict]:
        """The simulated processes that are still running."""
        return [one for one in self._records().get("simulated", ()) if _alive(one["pid"]) and not _is_server(one)]


def _is_server(one: dict) -> bool:
    """Returns whether a process is multiprocessing's server or tracker, which end with their parent."""
    return "multiprocessing" in " ".join(one["command"])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:  # it may have ended, and wait for whoever started it to ask
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


@dataclass(frozen=True)
class Found:
    """Holds what the processes of a run have written. `running`: records of those that did not end in time."""

    records: dict[str, list[dict]]
    running: list[dict]

    @property
    def reports(self) -> tuple[Report, ...]:
        """A report for each process that used the GPU: by rank, otherwise in the order in which they began."""
        found = sorted(self.records.get("used", ()), key=lambda one: one["begun"])
        reports = [one["report"] for one in found]
        return tuple(sorted(reports, key=lambda one: -1 if one.rank is None else one.rank[0]))

    def added_to(self, report: Report) -> Report:
        """The report of the program itself, with what is known of the processes that it started."""
        shared, unfollowed = list(self._together()), list(self._unfollowed())
        lost = list(self._lost())
        return dataclasses.replace(
            report,
            processes=self.reports,
            started=(*(text for text, _ in shared), *lost, *unfollowed),
            bounds=(*report.bounds, *(text for text, fits in shared if not fits), *lost),
            unused="and it started programs that are not simulated" if unfollowed else report.unused,
        )

    def _together(self) -> Iterator[tuple[str, bool]]:
        """Processes whose memory was on the same GPU at the same time, and whether their peaks fit together. Each was
        simulated with all of the GPU's memory."""
        by_gpu: dict[int, list[dict]] = {}
        for one in self.records.get("used", ()):
            by_gpu.setdefault(one["gpu"], []).append(one)
        for gpu, ones in sorted(by_gpu.items()):
            at_once = [[other for other in ones if other["begun"] <= one["begun"] < other["ended"]] for one in ones]
            most = max(at_once, key=lambda some: sum(one["report"].nvidia_smi for one in some))
            if len(most) > 1:
                used, total = sum(one["report"].nvidia_smi for one in most), most[0]["report"].total_memory
                yield (
                    f"{len(most)} processes were on cuda:{gpu} at the same time, each simulated alone: together they "
                    f"would use up to {size(used)} of {size(total)}"
                    + ("" if used <= total else ", and they fit only if their peaks come at different times"),
                    used <= total,
                )

    def _lost(self) -> Iterator[str]:
        """Processes that have not said what they used."""
        running = {one["pid"] for one in self.running}
        for one in self.records.get("simulated", ()):
            if not _is_server(one):
                state = "was still running" if one["pid"] in running else "was killed"
                yield f"{_shown(one['command'])} {state} before it could report what it used of the GPU"

    def _unfollowed(self) -> Iterator[str]:
        """Programs that ran without a simulated GPU."""
        pythons = self.records.get("python", ())
        followed = {one["pid"] for one in pythons}.union(*(one["ancestors"] for one in pythons))
        for one in self.records.get("unfollowed", ()):
            yield f"{one['executable']} is in an environment without simgpu: it imported torch without a simulated GPU"
        for one in self.records.get("thread", ()):
            yield f"{_shown(one['command'])} imported torch in a thread: no GPU was simulated there"
        others: Counter = Counter()
        for one in self.records.get("started", ()):
            if one["child"] in followed or one.get("followed"):
                continue
            name = os.path.basename(one["command"][0]) if one["command"] else ""
            if name.startswith(("python", "pypy")):
                yield f"{_shown(one['command'])} does not read PYTHONPATH (-I, -E, -S): no GPU was simulated there"
            elif name != "nvidia-smi":
                others[name] += 1
        if others:
            names = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in others.items())
            yield f"not simulated, because they are not Python: {names}"


def _shown(command: list[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= 80 else text[:77] + "..."


# --- what a simulated process does when it starts others ---------------------------------------------


def patch(patches: Patches, folder: str, other: Callable[[], None]) -> None:
    """Has processes that are started from here on followed, also with an environment of their own, and takes note of
    the programs. `other` is called when one is started."""
    patches.apply(subprocess.Popen, "__init__", _started(subprocess.Popen.__init__, folder, other))
    patches.apply(os, "system", _by_shell(os.system, folder, other))
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            patches.apply(os, name, _spawned(getattr(os, name), folder, other))
    process = multiprocessing.process.BaseProcess
    patches.apply(process, "start", _begun(process.start, other))


def with_ours(env, folder: str):
    """An environment that a program gives to a process, with what it needs to be followed."""
    if env is None or any(isinstance(name, bytes) for name in env):
        return env
    return {**env, **environment(folder, env)}


def _command(args) -> list[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        args = [args]
    return [os.fsdecode(one) for one in args]


def _started(init, folder: str, other: Callable[[], None]):
    @wraps(init)
    def __init__(popen, args, *rest, **options):
        _note_memory(folder)
        if options.get("env") is not None:
            options["env"] = with_ours(options["env"], folder)
        elif len(rest) > 9 and rest[9] is not None:
            rest = (*rest[:9], with_ours(rest[9], folder), *rest[10:])
        init(popen, args, *rest, **options)
        other()
        shell = options.get("shell") or (len(rest) > 7 and rest[7])
        command = ["sh", "-c", *_command(args)] if shell else _command(args)
        _noted(folder, command, popen.pid)

    return __init__


def _noted(folder: str, command: list[str], child: int, **more) -> None:
    with contextlib.suppress(OSError):  # the run is over
        startup.note(folder, "started", command=command, child=child, **more)


def _note_memory(folder: str) -> None:
    """Notes for `nvidia-smi` how much of the GPU this process uses now."""
    machine = machines.current()
    if machine is not None and machine.active and machine.used_memory:
        with contextlib.suppress(OSError):  # the run is over
            nvidia_smi.note(folder, machine.cuda.index, machine.used_memory)


def _by_shell(system, folder: str, other: Callable[[], None]):
    @wraps(system)
    def by_shell(command):
        _note_memory(folder)
        other()
        before = set(os.listdir(folder))
        status = system(command)
        new = [name for name in os.listdir(folder) if name.endswith(".python") and name not in before]
        _noted(folder, ["sh", "-c", os.fsdecode(command)], 0, followed=bool(new))
        return status

    return by_shell


def _spawned(spawn, folder: str, other: Callable[[], None]):
    @wraps(spawn)
    def spawned(path, argv, env, *rest, **options):
        _note_memory(folder)
        pid = spawn(path, argv, with_ours(env, folder), *rest, **options)
        other()
        _noted(folder, _command(argv), pid)
        return pid

    return spawned


def _begun(start, other: Callable[[], None]):
    from simgpu.torch_patches import loading

    @wraps(start)
    def begun(process):
        start(process)
        if getattr(process, "_target", None) is not loading.worker_loop:
            other()

    return begun
