"""One program on one simulated GPU: what it has around it while it runs, and what its end means."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from simgpu import machine as machines
from simgpu.errors import NoValueError
from simgpu.patches import Patches
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY, STOPPED
from simgpu.report.watch import Watch
from simgpu.running import builds, clock, files
from simgpu.running.endings import raising_code
from simgpu.running.script import StepsDone
from simgpu.running.steps import Limit
from simgpu.session import simulated_gpu
from simgpu.stand_ins import StandIns


@dataclass(frozen=True)
class Simulated:
    """A program that runs on a simulated GPU: what watches its memory, and what limits its steps."""

    watch: Watch
    limit: Limit


@contextlib.contextmanager
def simulation(settings: dict, rank: int | None = None, apart: files.KeptApart | None = None) -> Iterator[Simulated]:
    """Simulates a GPU for one program inside the `with`, watches its memory and protects its files.

    `settings`: "gpu", "memory", "values", "steps" and "backward_passes" as `simgpu.run` documents them, and "ranks",
    "per_node", "link", of which the program is rank `rank`; without a rank it sees "per_node" GPUs and uses one.
    Every process of a run has the same settings. `apart`: the overlay over the program's files, None with values.
    """
    values = settings["values"]
    world = {} if rank is None else {"rank": rank, **{name: settings[name] for name in ("ranks", "per_node", "link")}}
    with simulated_gpu(settings["gpu"], settings["memory"], values=values, **world):
        machine = machines.on()
        if rank is None:
            machine.gpus = settings["per_node"] or 1
        if not values:
            machine.stand_ins = StandIns()
        with Watch(machine) as watch, contextlib.ExitStack() as leave:
            patches = Patches()
            leave.callback(patches.undo)
            limit = Limit(watch.owners, settings["steps"], settings["backward_passes"])
            clock.patch(patches, machine)
            if apart is not None:
                apart.patch(patches, machine)
            if limit.steps is not None or limit.passes is not None:
                limit.patch(patches)
            yield Simulated(watch, limit)


@dataclass(frozen=True)
class End:
    """How a program ended: "completed", "out of memory" or "stopped", and a sentence about it.

    `bounds`: why the peak may be higher than what was seen. `interrupted`: whether Ctrl-C ended it.
    """

    ending: str
    text: str = ""
    bounds: tuple[str, ...] = ()
    interrupted: bool = False


def ended_by(error: BaseException | None, simulated: Simulated) -> End:
    """Says what it means that a program ended with this error, or without one if it is None."""
    watch, limit = simulated.watch, simulated.limit
    if error is None:
        return End(COMPLETED, limit.without_effect())
    if isinstance(error, StepsDone):
        return End(COMPLETED, str(error), limit.unreached())
    if isinstance(error, KeyboardInterrupt):
        return _interrupted(watch)
    return _exit(error, watch) if isinstance(error, SystemExit) else _failed(error, watch)


def _interrupted(watch: Watch) -> End:
    """Ctrl-C: what was found until then is shown."""
    made = watch.owners.steps
    text = f"Interrupted by Ctrl-C, after {made or 'no'} optimizer step{'s' * (made != 1)}."
    return End(COMPLETED, text, ("it was interrupted, so the peak may come later",), interrupted=True)


def _exit(error: SystemExit, watch: Watch) -> End:
    if error.code in (None, 0):
        return End(COMPLETED)
    if _because_of_memory(error, watch):
        return End(OUT_OF_MEMORY, f"The program ended with status {error.code} after the error.")
    return End(STOPPED, f"it ended with status {error.code}" + _of_values(watch))


def _failed(error: BaseException, watch: Watch) -> End:
    """An error that the program did not catch."""
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if _because_of_memory(error, watch):
        raised_afresh = not isinstance(error, torch.OutOfMemoryError)
        return End(OUT_OF_MEMORY, f"The program ended with {said}" if raised_afresh else "")
    if advice := builds.advice(error):
        return End(STOPPED, f"{said}\n{advice}")
    if isinstance(error, NoValueError) and watch.machine.stand_ins is not None:
        return End(STOPPED, said + "\nWith --values its tensors have values.")
    return End(STOPPED, said + _of_values(watch))


def _because_of_memory(error: BaseException, watch: Watch) -> bool:
    """Whether an error is one of memory, came from one, or was raised in its place.

    The last is so where no allocation succeeded after the last failed one, and the function that was running when that
    failed raises the error itself. A batch size finder does this when it has tried the smallest batch.
    """
    if watch.failure is None:
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        cause = cause.__cause__ or cause.__context__
    return not watch.served and raising_code(error) in watch.failing


def _of_values(watch: Watch) -> str:
    """A hint, if the program received stand-ins for values before it failed."""
    if not list(watch.machine.stand_ins or ()):
        return ""
    return "\nBefore that it received 0 in place of values (listed below), which may be why: --values computes them."
