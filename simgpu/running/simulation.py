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
from simgpu.running import clock, files
from simgpu.running.script import StepsDone
from simgpu.running.steps import Limit
from simgpu.session import simulated_gpu
from simgpu.stand_ins import StandIns


@contextlib.contextmanager
def simulation(settings: dict, rank: int | None = None) -> Iterator[Watch]:
    """Inside the `with`, a program runs on a simulated GPU, and what it allocates is watched.

    `settings`: "gpu", "memory", "values" and "steps" as `simgpu.run` documents them, and "ranks", "per_node", "link",
    of which the program is rank `rank`. It is that of every process of a run.
    """
    values, steps = settings["values"], settings["steps"]
    world = {} if rank is None else {"rank": rank, **{name: settings[name] for name in ("ranks", "per_node", "link")}}
    with simulated_gpu(settings["gpu"], settings["memory"], values=values, **world):
        machine = machines.on()
        if not values:
            machine.stand_ins = StandIns()
        with Watch(machine) as watch, _Surroundings(watch, steps):
            yield watch


class _Surroundings:
    """What a program has around it while it runs: the simulated clock, stand-ins for files, a limit of steps."""

    def __init__(self, watch: Watch, steps: int | None):
        self._patches = Patches()
        self._watch, self._steps = watch, steps

    def __enter__(self):
        machine = self._watch.machine
        clock.patch(self._patches, machine)
        if machine.stand_ins is not None:
            files.patch(self._patches, machine, machine.stand_ins)
        if self._steps is not None:
            Limit(self._steps, self._watch.owners).patch(self._patches)

    def __exit__(self, *error):
        self._patches.undo()


@dataclass(frozen=True)
class End:
    """How a program ended: "completed", "out of memory" or "stopped", and a sentence about it."""

    ending: str
    text: str = ""


def ended_by(error: BaseException | None, watch: Watch, values: bool) -> End:
    """What it means that a program ended with this error, or by itself if there is none."""
    if error is None:
        return End(COMPLETED)
    if isinstance(error, StepsDone):
        made = watch.owners.steps
        return End(COMPLETED, f"Ended after {made} optimizer step{'s' * (made != 1)}, as --steps says.")
    return _exit(error, watch) if isinstance(error, SystemExit) else _failed(error, watch, values)


def _exit(error: SystemExit, watch: Watch) -> End:
    if error.code in (None, 0):
        return End(COMPLETED)
    if _of_memory(error, watch):
        return End(OUT_OF_MEMORY, f"The program ended with status {error.code} after the error.")
    return End(STOPPED, f"it ended with status {error.code}")


def _failed(error: BaseException, watch: Watch, values: bool) -> End:
    """An error that the program did not catch."""
    if _of_memory(error, watch):
        return End(OUT_OF_MEMORY)
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    stand_ins = watch.machine.stand_ins
    if isinstance(error, NoValueError) and not values:
        said += "\nWith --values its tensors have values."
    elif stand_ins:
        said += "\nSome values were answered as 0 before that (below), which may be why: --values computes them."
    return End(STOPPED, said)


def _of_memory(error: BaseException | None, watch: Watch) -> bool:
    """Whether an error is one for want of memory, or came from one."""
    while error is not None and watch.failure is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
