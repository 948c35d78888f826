"""Stopping a program after so many optimizer steps."""

import weakref
from functools import wraps

from torch.optim import Optimizer

from simgpu.patches import Patches
from simgpu.report.owners import Owners
from simgpu.running.script import StepsDone


class Limit:
    """Raises StepsDone once every optimizer that was made has made `steps` steps, or before one would make more."""

    def __init__(self, steps: int, owners: Owners):
        self.steps = steps
        self.owners = owners
        self._made = weakref.WeakSet()
        owners.on_step, owners.before_step = self._after, self._before

    def patch(self, patches: Patches) -> None:
        """Takes note of the optimizers that are made from here on."""
        init = Optimizer.__init__

        @wraps(init)
        def __init__(optimizer, *args, **kwargs):
            self._made.add(optimizer)
            init(optimizer, *args, **kwargs)

        patches.apply(Optimizer, "__init__", __init__)

    def _done(self, optimizer) -> bool:
        return self.owners.counts.get(optimizer, 0) >= self.steps

    def _after(self, optimizer) -> None:
        if self._done(optimizer) and all(map(self._done, self._made)):
            raise StepsDone

    def _before(self, optimizer) -> None:
        if self._done(optimizer):
            raise StepsDone
