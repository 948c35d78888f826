"""Ending a program after a number of optimizer steps, or of backward passes, and what it had not reached at its end."""

import sys
import weakref
from functools import wraps

import torch
from torch.optim import Optimizer

from simgpu.patches import Patches
from simgpu.report.owners import Owners
from simgpu.running.script import StepsDone

PATIENCE = 5
"""How many times as many steps as were asked for one optimizer makes, at most, while another one has made fewer."""

ENOUGH = 2
"""Steps after which an optimizer's states have been there for a whole step."""

NO_STEP = "no optimizer made a step (a GradScaler skips steps whose gradients overflow), so the peak may come later"
"""A sentence about a program that ran a backward pass, made an optimizer, and ended by itself."""


class Limit:
    """Raises StepsDone once every optimizer that was made has made `steps` steps, or before backward pass
    `passes` + 1.

    The limit waits for an optimizer that lags behind until a different one has made PATIENCE times as many steps,
    because a critic may step five times for each step of its generator. None for no limit.
    """

    def __init__(self, owners: Owners, steps: int | None = None, passes: int | None = None):
        self.owners, self.steps, self.passes = owners, steps, passes
        self.ran = 0  # backward passes, those inside of others not counted
        self._depth = 0
        self.reached = ""  # what was reached, as a sentence
        self._made = weakref.WeakSet()
        self._optimizers = 0  # that were made, including those that are gone
        self._compiled_before = _compiled_frames()
        if steps is not None:
            owners.on_step, owners.before_step = self._after, self._before

    def patch(self, patches: Patches) -> None:
        """Notes the optimizers that are made, and the backward passes, from here on."""
        init, run = Optimizer.__init__, torch.autograd._engine_run_backward

        @wraps(init)
        def __init__(optimizer, *args, **kwargs):
            self._made.add(optimizer)
            self._optimizers += 1
            init(optimizer, *args, **kwargs)

        @wraps(run)
        def run_backward(*args, **kwargs):
            if self._depth == 0:
                if self.ran == self.passes:
                    self._end(f"Ended before backward pass {self.ran + 1}, as --backward-passes says")
                self.ran += 1
            self._depth += 1
            try:
                return run(*args, **kwargs)
            finally:
                self._depth -= 1

        patches.apply(Optimizer, "__init__", __init__)
        patches.apply(torch.autograd, "_engine_run_backward", run_backward)

    def unreached(self) -> tuple[str, ...]:
        """Says why the peak may be higher than what was seen, or returns an empty tuple.

        A limit may have ended the program before each optimizer had made ENOUGH steps. A program that ended by itself
        may have run a backward pass and never stepped, as with a GradScaler that skipped every step.
        """
        if not self.reached:
            return (NO_STEP,) if self._optimizers and self.ran and not self._stepped() else ()
        counts = [self.owners.fewest(one) for one in self._made]
        late = [count for count in counts if count < ENOUGH]
        if late:
            which = "the optimizer" if len(counts) == 1 else f"{len(late)} of {len(counts)} optimizers"
            made = "no step" if not max(late) else f"fewer than {ENOUGH} steps"
            return (f"{which} had made {made} when the limit ended the program, so the peak may come later",)
        if not counts and self.ran < ENOUGH:
            return (f"fewer than {ENOUGH} backward passes were made before the limit, so the peak may come later",)
        return ()

    def without_effect(self) -> str:
        """Returns advice for a program that ended normally without an optimizer whose steps could be counted, or ""."""
        if self.steps is None or self.reached or self.owners.steps:
            return ""
        return (
            "--steps had no effect, as no optimizer of torch.optim stepped; --backward-passes N limits other programs."
        )

    def _stepped(self) -> bool:
        """Whether an optimizer made a step, as far as is known: steps that are compiled are not counted."""
        compiled = _compiled_frames() > self._compiled_before
        return bool(self.owners.steps) or compiled or any(optimizer.state for optimizer in self._made)

    def _after(self, optimizer) -> None:
        assert self.steps is not None
        if all(self.owners.fewest(one) >= self.steps for one in self._made):
            self._end_of_steps(f", at least {self.steps} of each optimizer" if len(self._made) > 1 else "")

    def _before(self, optimizer) -> None:
        assert self.steps is not None
        if self.owners.counts.get(optimizer, 0) >= PATIENCE * self.steps:
            self._end_of_steps()

    def _end_of_steps(self, of_each: str = "") -> None:
        made = self.owners.steps
        self._end(f"Ended after {made} optimizer step{'s' * (made != 1)}{of_each}, as --steps says")

    def _end(self, words: str) -> None:
        self.reached = f"{words}."
        raise StepsDone(
            f"{self.reached} What would have come later, such as an evaluation or a checkpoint, did not run."
        )


def _compiled_frames() -> int:
    """How many functions torch.compile has looked at in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else sum(dynamo.counters["frames"].values())
