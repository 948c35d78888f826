"""Switches a simulated GPU on and off."""

import asyncio
import contextlib
import inspect
import operator
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch.utils import _device
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.autograd import accumulation, sequence_numbers
from simgpu.clock.clock import checked_slowness
from simgpu.device.machine import Machine
from simgpu.dispatch import costs, no_mode_guard, stacks
from simgpu.dispatch.dispatch_mode import DispatchMode
from simgpu.dispatch.function_mode import FunctionMode
from simgpu.distributed import patches
from simgpu.distributed import world as worlds
from simgpu.distributed.links import Links
from simgpu.distributed.world import World, world_of
from simgpu.gpus.specs import Spec, spec
from simgpu.interrupts import Deferred, other_handlers_wait
from simgpu.ops import autocast, dispatcher, zero_tensors
from simgpu.patches import Patches
from simgpu.shapes import meta_kernels
from simgpu.storage import meta_cache
from simgpu.storage.host_memory import HostMemory
from simgpu.torch_patches import (
    attributes,
    build,
    compiling,
    cuda,
    fakes,
    legacy_types,
    loading,
    model_files,
    nvml,
    storages,
    threads,
    torchscript,
    unraisable_hook,
)
from simgpu.tracebacks import PATHS
from simgpu.unmodeled import Unmodeled

if TYPE_CHECKING:
    from simgpu.report.figure import Figure
    from simgpu.report.report import Report
    from simgpu.report.watch import Watch

COMPARED = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""The versions of PyTorch whose CUDA host code was compared with the simulated GPU.

For 2.14 only the changed operators were compared, for the others whole workloads.
"""


def installed_torch() -> tuple[int, int]:
    """Returns major and minor version of the PyTorch that runs."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


@cache
def tell_of_a_newer_torch(version: tuple[int, int]) -> None:
    """Warns once, when a simulated GPU is first entered, if PyTorch is newer than all of COMPARED."""
    if version > COMPARED[-1]:
        known = ", ".join(".".join(map(str, one)) for one in COMPARED)
        warnings.warn(
            f"the simulated GPU was compared with torch {known}, and torch {version[0]}.{version[1]} is installed. "
            f"Where that allocates otherwise, the figures are those of torch {'.'.join(map(str, COMPARED[-1]))} "
            "(docs/oracle.md says how to compare)",
            stacklevel=4,
        )


@cache
def _of_the_simulator(filename: str) -> bool:
    return filename.startswith(PATHS)


def python_frames(limit: int = 64) -> list[dict]:
    """Returns the Python stack at an allocation, innermost first, in the format of torch.cuda.memory._snapshot()."""
    frames, frame = [], sys._getframe(1)
    while frame is not None and len(frames) < limit:
        code = frame.f_code
        if not _of_the_simulator(code.co_filename):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


class Session:
    """A simulated GPU that is on between `start` and `stop`.

    `stop` leaves torch, torch.cuda and pynvml as `start` found them. Tensors that are still alive then lose their
    device and become PyTorch's own meta tensors. The GPU is fully on or fully off after any interrupt.
    """

    def __init__(self, spec: Spec, values: bool = False, host: float = 1.0, world: World | None = None):
        self.world = world
        self.machine = Machine(spec, installed_torch(), python_frames, HostMemory() if values else None, host)
        self._patches = Patches()
        self._modes: list = []
        self._default_device = self._below_default_device = None
        self._leave = contextlib.ExitStack()  # what else is restored
        self._world = contextlib.ExitStack()  # what is restored for a rank of a world
        self._holds = False
        self._left = False
        self.watch_on: Watch | None = None  # what records its blocks
        self._thread = threading.current_thread()
        self._task = _running_task()

    def start(self) -> None:
        """Makes "cuda" mean this GPU. Raises RuntimeError if a different thread or task has one on."""
        self._refuse_strangers()
        tell_of_a_newer_torch(installed_torch())
        try:
            with Deferred():
                self._switch_on()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Restores torch; a second call does nothing. A GPU with others entered inside it goes off with the last of
        them.

        Raises RuntimeError and changes nothing if it is called in a thread other than its own, while that one is alive.
        """
        if self in _sessions and self._thread is not threading.current_thread() and self._thread.is_alive():
            raise RuntimeError(
                f"the simulated {self.machine.spec.key} was entered in another thread, which has its modes: leave it "
                "there"
            )
        with Deferred():
            self._left = True
            inside = _sessions[_sessions.index(self) + 1 :] if self in _sessions else []
            if not all(one._left for one in inside):
                self.machine.active = False  # its tensors are released; torch is restored when the inner ones are left
                return
            for one in (*reversed(inside), self):
                one._switch_off()
            while _sessions and _sessions[-1]._left:
                _sessions[-1]._switch_off()

    def watch(self) -> "Watch":
        """Records each block from here on, until the GPU is off."""
        watch = _of_reports("watch").Watch(self.machine)
        with Deferred():
            self.watch_on = self._leave.enter_context(watch)
        return watch

    def give_up(self) -> None:
        """Marks the GPU as abandoned, for a call in a thread other than its own.

        Python may collect garbage, also generators, in any thread. The GPU's own thread switches it off the next time
        it enters or leaves a simulated GPU.
        """
        self._left = True

    def _refuse_strangers(self) -> None:
        """Raises RuntimeError if the GPU in use belongs to a different thread, or to a different running asyncio
        task.
        """
        while _sessions and _sessions[-1]._is_nobodys(self._thread):
            _sessions[-1].stop()
        if not _sessions:
            return
        other = _sessions[-1]
        if other.machine.alone:
            raise RuntimeError(other.machine.alone)
        who = "thread" if other._thread is not self._thread else "task"
        task = other._task()
        if who == "thread" or (task is not None and task is not self._task() and not task.done()):
            raise RuntimeError(
                f"the simulated {other.machine.spec.key} of another {who} is on, and a process has one at a time: "
                "leave that one first, or use it here too"
            )

    def _is_nobodys(self, thread: threading.Thread) -> bool:
        """Returns whether this GPU is on, abandoned, and may be switched off by `thread`.

        That is so if its own thread has ended, which also ends its modes. It is also so if `thread` is its own, and a
        different thread has collected the object that held it.
        """
        return not self._thread.is_alive() or (self._left and self._thread is thread)

    def _switch_on(self) -> None:
        stacks.drop_stale(but=[mode for session in _sessions for mode in session._modes])
        _sessions.append(self)
        self._default_device, self._below_default_device = _device.CURRENT_DEVICE, stacks.below_default_device()
        with torch.inference_mode(False), torch.enable_grad(), _disable_current_modes():
            meta_kernels.prepare()
            accumulation.prepare()
        meta_cache.forget()
        sequence_numbers.forget()
        costs.forget()
        self.machine.activate()
        dispatcher.hold(autocast.register, no_mode_guard.register, zero_tensors.register)
        self._holds = True
        cuda.patch(self._patches, self.machine)
        nvml.patch(self._patches, self.machine)
        autocast.patch(self._patches)
        build.patch(self._patches)
        compiling.patch(self._patches, self.machine)
        dispatch = DispatchMode(self.machine)
        functions = FunctionMode(dispatch)
        attributes.patch(self._patches, functions)
        storages.patch(self._patches, functions)
        legacy_types.patch(self._patches, functions)
        fakes.patch(self._patches, (dispatch, functions))
        self.machine.seeing = dispatch.face
        patches.patch(self._patches, self.machine)
        loading.patch(self._patches)
        model_files.patch(self._patches)
        torchscript.patch(self._patches)
        self._leave.enter_context(model_files.loaded_in_one_thread())
        self._leave.enter_context(attributes.open_hooks_seen(functions))
        self._leave.enter_context(unraisable_hook.raised_again())
        self._leave.enter_context(compiling.refused(self._patches))
        threads.patch(self._patches, self.machine, (dispatch, functions))
        self._leave.enter_context(other_handlers_wait(partial(stacks.as_outside, (dispatch, functions))))
        for mode in (dispatch, functions):
            self._modes.append(mode)
            stacks.enter(mode)
        autocast.start()
        if self.world is not None:
            worlds.enter(self.machine, self.world, self._world)

    def _switch_off(self) -> None:
        steps = (
            self._world.close,
            self._leave_modes,
            self._leave_default_device,
            self._patches.undo,
            self._leave.close,
            self._let_go,
            meta_cache.forget,
            costs.forget,
            self.machine.deactivate,
            autocast.stop,
            self._forget,
        )
        with contextlib.ExitStack() as stack:  # runs every step, even if one of them raises
            for step in reversed(steps):
                stack.callback(step)

    def _leave_modes(self) -> None:
        while self._modes:
            stacks.leave(self._modes[-1])
            self._modes.pop()

    def _leave_default_device(self) -> None:
        """Ends a default device that was set inside and is the GPU."""
        default = _device.CURRENT_DEVICE
        if default is not None and default.type == "cuda" and default != self._default_device:
            stacks.leave_default_device(self._default_device, self._below_default_device)

    def _let_go(self) -> None:
        if self._holds:
            self._holds = False
            dispatcher.let_go()

    def _forget(self) -> None:
        if self in _sessions:
            _sessions.remove(self)


def _of_reports(name: str):
    """Returns a module of simgpu.report. It is a layer above this one, so it is imported only if a GPU is watched."""
    return import_module(f"simgpu.report.{name}")


_sessions: list[Session] = []  # the sessions that are on, the innermost last


def _running_task() -> Callable[[], asyncio.Task | None]:
    """Returns a function that returns the asyncio task that runs in this thread now.

    It holds a weak reference, because a task without other references ends, and leaves its GPU, when Python collects
    it.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return _no_task if task is None else weakref.ref(task)


def _no_task() -> None:
    return None


@dataclass(frozen=True)
class SimulatedGPU:
    """Describes a simulated GPU in use: its name ("A100-80GB") and its memory in bytes.

    `unmodeled` is what its figures exclude so far, an iterable of (name, reason) that is false if empty. `host` is the
    factor on the host's times.
    """

    name: str
    total_memory: int
    unmodeled: Unmodeled = field(repr=False, compare=False)
    simulated: bool = True
    host: float = 1.0
    watch: "Watch | None" = field(default=None, repr=False, compare=False)

    def __str__(self):
        return f"simulated {self.name}"

    def report(self) -> "Report":
        """Returns the report so far, as `simgpu.run` returns one. Raises RuntimeError without `watch=True`."""
        watch = self.watch
        if watch is None:
            raise RuntimeError(f'wanted a GPU that records blocks: simulated_gpu("{self.name}", watch=True)')
        if watch.machine.active:
            watch.close()
        ran_out = watch.failure is not None and not watch.served
        return _of_reports("report").report_of(watch, "the block", "out of memory" if ran_out else "completed")

    def timeline(self) -> "Figure":
        """Returns the figure of memory over time so far, which a notebook shows. Raises RuntimeError without
        `watch=True`."""
        return _of_reports("figure").Figure(self.report())


class simulated_gpu(contextlib.ContextDecorator):
    """Makes "cuda" a simulated GPU of that name inside the `with`, with empty memory, on any machine.

        with simgpu.simulated_gpu("H100") as gpu:
            x = torch.ones(1, device="cuda")
            torch.cuda.memory_allocated()          # 512

    `total_memory` (bytes) replaces the GPU's own, for example to see what a model needs that fits on no GPU.

    `values` says whether all tensors have values, which the CPU computes in addition to the simulation. Memory is then
    the GPU's, and the values are the CPU's. Raises HostMemoryError if they don't fit into the host's memory. Without
    `values`, most tensors have none: `.item()` of a float returns NaN with a warning, and an operation that needs a
    value raises an error that says so.

    `ranks` and `rank` make the process one rank of a world of that size, with this GPU. The other ranks don't exist,
    but torch.distributed answers as if they did. `per_node` is the number of GPUs per machine, and `link` what connects
    them (see `simgpu.one_rank` for all of these).

    `host` is the factor by which this host is slower than the one that the clock assumes (clock/rates.py), for an
    operator, a launch, a view. `simgpu.host_slowness()` measures it for this machine.

    With `watch`, each block is recorded, so that `gpu.timeline()` shows memory over time and `gpu.report()` returns a
    report, also after the `with`.

    On exit, also by an exception, torch, torch.cuda and pynvml are restored. Threads that are started inside see the
    GPU too. Raises ValueError if `name` is not a GPU of `simgpu.gpus.specs` (the message lists them), if
    `total_memory` is too small for the CUDA context, if `host` is not a positive number, and if the GPU does not have
    the `link`. Raises TypeError if `total_memory` is not a whole number, and RuntimeError if a different thread or task
    has a simulated GPU on.
    """

    def __init__(
        self,
        name: str = "A100-80GB",
        total_memory: int | None = None,
        *,
        values: bool = False,
        host: float = 1.0,
        ranks: int | None = None,
        rank: int | None = None,
        per_node: int | None = None,
        link: str | float | None = None,
        watch: bool = False,
    ):
        self._sessions: list[Session] = []
        self._watch = bool(watch)
        self._kind = _of_memory(spec(name), total_memory)
        self._values = bool(values)
        self._host = checked_slowness(host)
        self._world = _world(self._kind, ranks, rank, per_node, link)

    def __call__(self, function):
        if any(kind(function) for kind in _RUN_LATER):
            raise TypeError(
                f"{function.__qualname__} runs after it was called, when the simulated GPU would be off again: say "
                "`with simulated_gpu(...):` inside it"
            )
        return super().__call__(function)

    def _recreate_cm(self):
        return _again(*self._arguments())

    def __reduce__(self):  # a copy is a new GPU of that kind, which is not entered
        return _again, self._arguments()

    def _arguments(self) -> tuple:
        world = self._world
        of = () if world is None else (world.ranks, world.rank, world.per_node, world.link)
        of = of or (None, None, None, None)
        return self._kind.key, self._kind.total_memory, self._values, self._host, *of, self._watch

    def __enter__(self) -> SimulatedGPU:
        session = Session(self._kind, self._values, self._host, self._world)
        # appended before it is on, so that it has an owner who leaves it after any interrupt
        self._sessions.append(session)
        try:
            session.start()
        except BaseException:
            self._sessions.remove(session)
            raise
        machine = session.machine
        watch = session.watch() if self._watch else None
        return SimulatedGPU(
            machine.spec.key, machine.spec.total_memory, machine.unmodeled, host=self._host, watch=watch
        )

    @property
    def is_on(self) -> bool:
        """Returns whether it was entered and not left; if others were entered inside it, it goes off with the last of
        them.
        """
        return bool(self._sessions)

    def __exit__(self, *error) -> None:
        if not self.is_on:
            raise RuntimeError(f"this simulated {self._kind.key} is not on: it was left already, or never entered")
        session = self._sessions[-1]
        try:
            if session.watch_on is not None and session.machine.active:
                session.watch_on.close()
            session.stop()
        except Exception:
            if error and error[0] is GeneratorExit:
                session.give_up()
            raise
        except BaseException:  # an interrupt, which arrives only once
            session.stop()
            raise
        finally:
            if session not in _sessions:
                self._sessions.remove(session)

    def __del__(self):
        sessions = vars(self).get("_sessions", ())  # none if an interrupt arrived before the first line of `__init__`
        for session in reversed(sessions):  # an interrupt arrived just before `__exit__`, or it was never left
            try:
                session.stop()
            except RuntimeError:
                session.give_up()


_RUN_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def _again(
    name: str,
    total_memory: int,
    values: bool,
    host: float = 1.0,
    ranks: int | None = None,
    rank: int | None = None,
    per_node: int | None = None,
    link: str | float | None = None,
    watch: bool = False,
) -> simulated_gpu:
    world = {"ranks": ranks, "rank": rank, "per_node": per_node, "link": link}
    return simulated_gpu(name, total_memory, values=values, host=host, **world, watch=watch)


def _world(kind: Spec, ranks, rank, per_node, link) -> World | None:
    if ranks is None:
        for name, given in (("rank", rank), ("per_node", per_node), ("link", link)):
            if given is not None:
                raise ValueError(f"{name}={given!r} of how many ranks? Say ranks= too")
        return None
    world = world_of(0 if rank is None else rank, ranks, per_node, link)
    Links(kind, world)  # raises ValueError if the GPU does not have the link
    return world


def _of_memory(kind: Spec, total_memory: int | None) -> Spec:
    if total_memory is None:
        return kind
    try:
        nbytes = operator.index(total_memory)
    except TypeError:
        raise TypeError(f"total_memory is a whole number of bytes, not {total_memory!r}") from None
    if nbytes <= kind.context:
        given, context = (f"{one} B ({one / 2**20:,.2f} MiB)" for one in (nbytes, kind.context))
        raise ValueError(f"total_memory={given} does not hold the CUDA context of the {kind.key}, {context}")
    return replace(kind, total_memory=nbytes)
