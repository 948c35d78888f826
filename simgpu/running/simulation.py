"""One program on one simulated GPU: what it has around it while it runs."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from simgpu.device import machine as machines
from simgpu.errors import NoValueError
from simgpu.patches import Patches
from simgpu.placeholder_values import PlaceholderValues
from simgpu.report.watch import Watch
from simgpu.running import builds, clock, files
from simgpu.running.endings import NOT_OF_VALUES, OF_VALUES
from simgpu.running.steps import Limit
from simgpu.session import simulated_gpu


@dataclass(frozen=True)
class Simulated:
    """A program that runs on a simulated GPU: what watches its memory, and what limits its steps."""

    watch: Watch
    limit: Limit

    # What `endings` asks

    def steps(self) -> int:
        return self.watch.owners.steps

    def failing(self) -> frozenset | None:
        if self.watch.failure is None:
            return None
        return frozenset() if self.watch.served else self.watch.failing

    def unreached(self) -> tuple[str, ...]:
        return self.limit.unreached()

    def without_effect(self) -> str:
        return self.limit.without_effect()

    def reached(self) -> str:
        return self.limit.reached

    def hint(self, error: BaseException) -> str:
        if advice := builds.advice(error):
            return f"\n{advice}"
        if isinstance(error, NoValueError) and self.watch.machine.placeholder_values is not None:
            return "\nWith --values its tensors have values."
        read = list(self.watch.machine.placeholder_values or ()) and not isinstance(error, NOT_OF_VALUES)
        return OF_VALUES if read else ""


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
            machine.placeholder_values = PlaceholderValues()
        with Watch(machine) as watch, contextlib.ExitStack() as leave:
            patches = Patches()
            leave.callback(patches.undo)
            limit = Limit(watch.owners, settings["steps"], settings["backward_passes"])
            clock.patch(patches, machine)
            if apart is not None:
                apart.patch(patches, machine)
            limit.patch(patches)
            yield Simulated(watch, limit)
