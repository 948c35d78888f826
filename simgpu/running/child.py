"""A process that a simulated run has started: it is simulated from its import of torch on, and reports when it ends.

It can end normally, by an error, by `os._exit` (multiprocessing's forks), by a signal of the process that started it,
or because `os.exec*` puts another program in its place.
"""

import atexit
import contextlib
import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
from functools import wraps
from pathlib import Path
from typing import NoReturn

from simgpu.device.machine import VISIBLE
from simgpu.distributed.world import enter, world_of
from simgpu.patches import Patches
from simgpu.report import provenance
from simgpu.report.report import report_of
from simgpu.running import files, processes
from simgpu.running.endings import ended_by
from simgpu.running.simulation import Simulated, simulation
from simgpu.running.startup import _simgpu_startup as startup
from simgpu.tracebacks import as_on_gpu

_ours: list["Process"] = []  # of this process, the innermost last


def begin(folder: str, settings: dict) -> None:
    """Simulates the GPU in this process until it ends. Called when torch has been imported."""
    if _visible(settings) in ("", "-1") or _ours:
        return  # the program hides it from this process, or this is the fork of a process that has one
    if threading.current_thread() is not threading.main_thread():
        startup.note(folder, "thread", command=list(sys.orig_argv))
        return
    leave = contextlib.ExitStack()
    simulated = leave.enter_context(simulation(settings, apart=files.of_this_run()))
    simulated.watch.machine.movable = True
    one = Process(folder, settings, simulated, leave)
    one.record = startup.note(folder, "simulated", command=list(sys.orig_argv))
    one.join_world()
    atexit.register(one.at_exit)


class Process:
    """This process as a part of a run: what it writes into the run's folder, and when.

    `leave` puts torch back; `inside`: whether `simgpu.run` was called in this process or in the one it is a fork of.
    """

    def __init__(
        self, folder: str, settings: dict, simulated: Simulated, leave: contextlib.ExitStack, inside: bool = False
    ):
        self.folder, self.settings, self.watch, self._simulated = folder, settings, simulated.watch, simulated
        self.record = ""
        self.begun = startup.time_ns()
        self.error: BaseException | None = None  # that a process of multiprocessing has ended with
        self._pid = os.getpid()
        self._inside = inside
        self._silent = False  # whether it is the fork of one that has used the GPU, and cannot use it
        self._leave = leave
        patches = Patches()
        leave.callback(patches.undo)
        processes.patch(patches, folder, self.has_others)
        self._exit_now = os._exit
        patches.apply(os, "_exit", self._exiting(os._exit))
        for name in ("execv", "execve"):
            patches.apply(os, name, self._replaced(getattr(os, name)))
        process = multiprocessing.process.BaseProcess
        patches.apply(process, "run", self._noted(process.run))
        self.watch.machine.join = self.join
        _ours.append(self)
        leave.callback(_ours.remove, self)
        if not inside:
            patches.apply(sys, "excepthook", _shown_as_on_gpu(sys.excepthook))
            self._on_signal()

    @property
    def is_child(self) -> bool:
        """Whether this process was started, not the one that `simgpu.run` was called in."""
        return not self._inside or self._pid != os.getpid()

    def has_others(self) -> None:
        """Notes that this process may wait for another one, so time.sleep takes real time from here on."""
        self.watch.machine.has_others = True

    # --- which rank it is

    def join_world(self) -> None:
        """Makes it the rank that torchrun's variables name."""
        rank, ranks = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        visible = _visible(self.settings)
        if visible and "," not in visible:
            self.watch.machine.move(0)
        if rank.isdigit() and ranks.isdigit():
            self.join(int(rank), int(ranks))

    def join(self, rank: int, ranks: int) -> None:
        """Makes the process rank `rank` of `ranks`, of which the others are processes too."""
        if ranks > 1 and self.is_child and self.watch.machine.world is None:
            here = os.environ.get("LOCAL_WORLD_SIZE", "")
            per_node = int(here) if here.isdigit() else self.settings.get("per_node") or ranks
            world = world_of(rank, ranks, per_node, self.settings.get("link"), started=True)
            enter(self.watch.machine, world, self._leave)
            self.has_others()

    # --- how it ends

    def at_exit(self) -> None:
        """Reports when Python ends: normally, by sys.exit, or by an error, which it has shown."""
        self.finish(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))
        if self._pid == os.getpid():
            self._leave.close()

    def finish(self, error: BaseException | None = None, status: object = 0, ended: str = "") -> None:
        """Writes the report, if the GPU was used. `error` or `status`: what the process ends with."""
        machine, folder = self.watch.machine, Path(self.folder)
        if self.record:
            Path(self.record).unlink(missing_ok=True)
        if self._silent or not machine.has_context or not folder.is_dir():
            return
        self.watch.close()
        values = self.settings.get("values", False)
        end = ended_by(error or self.error or _exit_of(status), self._simulated)
        more = {"ended": end.text or ended, "bounds": end.bounds, "interrupted": end.interrupted}
        more["command"] = provenance.command(sys.orig_argv)
        report = report_of(self.watch, _name(), end.ending, values=values, **more)
        path = folder / f"{os.getpid()}-{startup.time_ns()}.json"
        report.save(path)
        about = {"begun": self.begun, "ended": startup.time_ns(), "gpu": machine.index, "report": str(path)}
        startup.note(self.folder, "used", **about)

    def leave_fork(self, error: BaseException | None) -> NoReturn:
        """Ends a fork of the run's own process, which has come to the end of the program."""
        code = error.code if isinstance(error, SystemExit) else int(error is not None)
        self.finish(error)
        if isinstance(code, str):
            print(code, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._exit_now(code if isinstance(code, int) else int(code is not None))
        raise AssertionError("the process has ended")

    def after_fork(self) -> None:
        """This process is a fork of the one that it was made in."""
        self._silent = self._silent or self.watch.machine.has_context
        self.has_others()
        self.begun, self.error, self.record = startup.time_ns(), None, ""
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.watch.machine.on_first_use = self._on_signal
        if self.watch.machine.allocator.has_read_settings:  # in the parent, so `on_first_use` will not be called
            self._on_signal()

    def _on_signal(self) -> None:
        """Lets a process that is ended by a signal write its report first, unless the program has its own handler.

        A fork does so from its first use of the GPU on. Before, it has nothing to report, and a handler has a price:
        Python runs it between two instructions, so a signal that arrives just before a call that blocks is not seen.
        The workers of a pool or of a DataLoader are mostly such forks, and they are ended by this signal. A fork that
        first uses the GPU in another thread gets no handler, so the signal ends it without a report.
        """
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number, frame) -> None:
        self.finish(ended="Another process ended it (SIGTERM).")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _exiting(self, exit_now):
        """os._exit, which is `exit_now`. In the run's own process it ends the program, not the run."""

        @wraps(exit_now)
        def _exit(status):
            if not self.is_child and threading.current_thread() is threading.main_thread():
                raise SystemExit(status)
            self.finish(status=status)
            exit_now(status)

        return _exit

    def _replaced(self, execute):
        """os.execv or os.execve, which is `execute`. In the run's own process the other program is started instead."""

        @wraps(execute)
        def replaced(path, args, *env):
            env = tuple(processes.with_ours(one, self.folder) for one in env)
            if not self.is_child:
                done = subprocess.run(list(args), executable=path, env=env[0] if env else None)
                raise SystemExit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
            if os.access(path, os.X_OK):
                self.finish()
            execute(path, args, *env)

        return replaced

    def _noted(self, run):
        """multiprocessing's Process.run, which is `run`: the error that it ends with is remembered."""

        @wraps(run)
        def noted(process):
            try:
                run(process)
            except BaseException as error:
                self.error = error
                raise

        return noted


def _shown_as_on_gpu(show):
    """sys.excepthook, which is `show`: tracebacks are shown without the simulated GPU's own frames."""

    @wraps(show)
    def excepthook(kind, error, trace):
        show(kind, error.with_traceback(as_on_gpu(trace)), as_on_gpu(trace))

    return excepthook


def _visible(settings: dict) -> str | None:
    """The GPUs that the program has made visible to this process; None if it has not chosen any."""
    visible = os.environ.get(VISIBLE)
    return None if visible == settings.get("visible") else visible


def _exit_of(status: object) -> SystemExit | None:
    return None if status in (None, 0) else SystemExit(status)


def _name() -> str:
    """Returns what the process runs: its script, and its name if multiprocessing has started it."""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    process = multiprocessing.current_process().name
    return script if process == "MainProcess" else f"{process} of {script}"


def _in_fork() -> None:
    for one in _ours:
        one.after_fork()


def _after_forking() -> None:
    for one in _ours:
        one.has_others()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork, after_in_parent=_after_forking)
