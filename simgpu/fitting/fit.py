"""`simgpu.fit`: whether a plan fits on a GPU, the largest batch that does, and the GPUs on which it does."""

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from simgpu.fitting.measuring import SILENT, Measured, measure
from simgpu.fitting.plan import Plan
from simgpu.fitting.progress import Silent
from simgpu.fitting.search import Search
from simgpu.fitting.subject import Subject, subject_of
from simgpu.hardware.gpus import SPECS, spec
from simgpu.report.owners import ACTIVATIONS, DATA, TEMPORARIES
from simgpu.report.report import Report
from simgpu.report.sizes import capacity, mib, size
from simgpu.report.verdict import CONTEXT_UNCERTAINTY, DOES_NOT_FIT, FITS, UNDECIDED

UNLIMITED = 2**50
"""Bytes of a GPU on which everything fits, to tell what a plan would need."""

SURE = 2**30
"""Bytes by which two GPUs' needs for one plan may differ (workspaces, contexts); nearer than that it is run on each."""

LARGEST = 2**20
OF_THE_BATCH = (ACTIVATIONS, TEMPORARIES, DATA)
"""What a larger batch has more of, where the peak is in the forward or backward pass."""

_OF_THE_REPORT = (
    *("fits", "completed", "verdict", "peak", "reserved", "nvidia_smi", "total_memory"),
    *("at", "parts", "lines", "left_out", "status"),
)


class Fit:
    """What a plan takes on a GPU, and questions about it.

    `fits`, `peak`, `reserved`, `nvidia_smi`, `total_memory` (bytes), `at`, `parts`, `lines` are those of the report.
    `needs`: the bytes that nvidia-smi would show if the GPU were large enough. `step`: seconds of a step on the
    simulated clock.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        gpu: str,
        memory: int | None = None,
        known: dict | None = None,
        tell: Silent = SILENT,
    ):
        subject.check(plan.length)
        self.tell = tell
        self.subject, self.plan, self.gpu, self.memory = subject, plan, spec(gpu).key, memory
        self._known: dict[tuple, Measured] = {} if known is None else known  # of this model, by plan, GPU and memory
        self.measured = self.of(plan)
        self.step = self.measured.step

    @cached_property
    def report(self) -> Report:
        """The report. Of a plan that ran out of memory it has the smallest capacity that was found to fit, because how
        much is missing in all decides whether it is too close to call."""
        report = self.measured.report
        if report.completed:
            return report
        return dataclasses.replace(report, smallest=self.of(self.plan, memory=UNLIMITED).report.smallest)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THE_REPORT:
            return getattr(self.report, name)
        raise AttributeError(name)

    def changed(self, **fields) -> "Fit":
        """The same model on the same GPU with another plan: `fit.changed(batch=4, lora=16)`. ValueError for what is no
        field of a plan, or none of its values."""
        unknown = fields.keys() - {one.name for one in dataclasses.fields(Plan)}
        if unknown:
            known = ", ".join(one.name for one in dataclasses.fields(Plan))
            raise ValueError(f"a plan has {known}, and no {', '.join(sorted(unknown))}")
        return self.on(self.gpu, self.memory, dataclasses.replace(self.plan, **fields))

    def on(self, gpu: str, memory: int | None = None, plan: Plan | None = None) -> "Fit":
        """The same model on another GPU, or with another capacity in bytes."""
        return Fit(self.subject, plan or self.plan, gpu, memory, self._known, self.tell)

    @property
    def capacity(self) -> int:
        """Bytes of the GPU's memory."""
        return self.memory or spec(self.gpu).total_memory

    def of(self, plan: Plan, gpu: str | None = None, memory: int | None = None) -> Measured:
        """What another plan takes, on this GPU or another one. Each is run once, and one that never met its GPU's limit
        is not run again without a limit. A plan whose figures are by formula runs without one, and fits if they do."""
        gpu = gpu or self.gpu
        own = self.memory if gpu == self.gpu else None
        memory = memory or own
        key = plan, gpu, memory
        if key not in self._known:
            limited = self._known.get((plan, gpu, own))
            if memory == UNLIMITED and limited is not None and limited.report.completed and not limited.retried:
                report = dataclasses.replace(limited.report, total_memory=UNLIMITED)
                self._known[key] = dataclasses.replace(limited, report=report)
            else:
                self._known[key] = self._run(plan, gpu, memory)
        return self._known[key]

    def _run(self, plan: Plan, gpu: str, memory: int | None) -> Measured:
        total = memory or spec(gpu).total_memory
        if not plan.four_bit:
            found = self._measured(plan, gpu, memory)
            less = total - CONTEXT_UNCERTAINTY
            needed = found.report.peak + found.report.context
            smallest = found.report.smallest or found.report.nvidia_smi
            if found.report.completed and needed <= less < smallest:
                # Near the limit: whether the cache would make room on a GPU whose context is larger. A run may find
                # a smaller capacity than replays do, which look for one by halves.
                smaller = self._measured(plan, gpu, less).report
                if smaller.completed:
                    report = dataclasses.replace(found.report, smallest=smaller.nvidia_smi)
                    return dataclasses.replace(found, report=report)
            return found
        found = self._measured(plan, gpu, UNLIMITED)
        fits = found.report.nvidia_smi <= total
        report = dataclasses.replace(
            found.report,
            total_memory=total,
            ending="completed" if fits else "out of memory",
            failure=None if fits else (found.report.nvidia_smi, total, ""),
        )
        return dataclasses.replace(found, report=report)

    def _measured(self, plan: Plan, gpu: str, memory: int | None) -> Measured:
        """Runs a plan, and tells what came of it."""
        with self.tell.running(plan, gpu) as told:
            found = measure(self.subject, plan, gpu, memory, self.tell)
            told.append(f"{mib(found.report.nvidia_smi)} MiB" if found.report.completed else "does not fit")
        return found

    @property
    def needs(self) -> int:
        """Bytes that nvidia-smi would show at most, were the GPU large enough."""
        return (
            self.report.nvidia_smi if self.report.completed else self.of(self.plan, memory=UNLIMITED).report.nvidia_smi
        )

    # What else would fit

    def largest(self, what: str = "batch") -> int:
        """The largest `batch` or `length` that fits, 0 if 1 does not. ValueError for another word.

        It fits, and one more does not: both were run. It may be less than a line through the needs of two smaller ones
        says, also than one through what nvidia-smi shows: reserved memory grows in steps, by whole segments and by
        what is left free in them, and no line has those. For the same reason a still larger one may fit again; that is
        not searched for.
        """
        *_, search = self.searching(what)
        return search.good

    def searching(self, what: str = "batch", spare: int = 0, known: tuple[int, int] | None = None) -> Iterator[Search]:
        """The steps of the search for the largest: yields the search after each run. `spare`: bytes that stay free.
        `known`: a number to begin with, and one that is known to be too large."""
        if what not in ("batch", "length"):
            raise ValueError(f"wanted the largest 'batch' or 'length', not {what!r}")
        if what == "length" and self.subject.length is None:
            raise ValueError(f"{self.subject.name} has no length")
        guess, bad = known or (getattr(self.plan, what) or 1, LARGEST)
        if what == "length" and self.subject.longest is not None:
            guess, bad = min(guess, self.subject.longest), min(bad, self.subject.longest + 1)
        search, total = Search(guess, bad), self.capacity - spare
        yield search
        while not search.done:
            search.tell(*self._fits_with(what, search.guess, total), total)
            yield search

    def _fits_with(self, what: str, value: int, total: int) -> tuple[bool, int, int]:
        """Whether the plan fits with another batch or length, the bytes that it would use on a GPU of any size, and
        those of them that are made by the batch. Where it would use more than there is, and the tensors alone are less,
        the cache makes room: there it is run."""
        plan = dataclasses.replace(self.plan, **{what: value})
        report = self.of(plan, memory=UNLIMITED).report
        fits, grows = report.nvidia_smi <= total, sum(report.parts.get(part, 0) for part in OF_THE_BATCH)
        if report.nvidia_smi > total > report.peak + report.context:
            fits = self.of(plan, memory=None if total == self.capacity else total).report.completed
        return fits, report.nvidia_smi, grows

    def every_gpu(self, names: Iterable[str] = SPECS) -> dict[str, bool]:
        """Each GPU, the smallest first, and whether the plan fits on it. Those far from the limit are not run."""
        return {name: outcome == FITS for name, outcome in self.each_gpu(names)}

    def each_gpu(self, names: Iterable[str] = SPECS) -> Iterator[tuple[str, str]]:
        """Yields each GPU, the smallest first, and the verdict: "fits", "undecided" or "does not fit"."""
        for name in sorted(names, key=lambda one: SPECS[one].total_memory):
            yield name, self._on(name, self.plan)[0]

    def cheapest(self) -> str | None:
        """The smallest GPU on which the plan fits; None if it does on none."""
        return next((name for name, fits in self.every_gpu().items() if fits), None)

    def techniques(self, budget: int | str | None = None):
        """What each technique saves on this plan, in the order in which to apply them; `budget` finds the fastest
        combination within so many bytes (as nvidia-smi shows them). See simgpu.fitting.techniques."""
        from simgpu.fitting.techniques import techniques

        return techniques(self, None if budget is None else capacity(budget))

    def table(self, gpus: Iterable[str] | None = None, batches: Iterable[int] = (1, 2, 4, 8, 16, 32)) -> str:
        """GPUs by batch sizes in Markdown, for a model's README: MiB as nvidia-smi shows them, or a dash."""
        names = [spec(name).key for name in gpus] if gpus else sorted(SPECS, key=lambda one: SPECS[one].total_memory)
        batches = list(batches)
        rows = [f"| simulated GPU (MiB) | {' | '.join(f'batch {batch}' for batch in batches)} |"]
        rows.append("|---|" + "---:|" * len(batches))
        for name in names:
            cells = []
            for batch in batches:
                plan = dataclasses.replace(self.plan, batch=batch)
                outcome, needs = self._on(name, plan)
                close = " ?" if outcome == UNDECIDED and not self.report.left_out else ""
                cells.append("–" if outcome == DOES_NOT_FIT else f"{needs / 2**20:,.0f}{close}")
            rows.append(f"| {name}, {mib(spec(name).total_memory)} | {' | '.join(cells)} |")
        plan = dataclasses.replace(self.plan, batch=batches[0])
        left_out = self.report.left_out
        words = str(plan).replace(f"batch {plan.batch}", "batch as above", 1)
        own = (
            f"Reserved as on the {self.gpu}, with each GPU's own context; near its limit each was run; "
            "–: does not fit; ?: too close to call."
        )
        rows += ["", f"{self.subject.name}: {words}; simulated. {own}"]
        return "\n".join(rows + ([left_out] if left_out else [])) + "\n"

    def _on(self, gpu: str, plan: Plan) -> tuple[str, int]:
        """The verdict on a plan on another GPU, and what nvidia-smi shows there: with that GPU's context, and run there
        where it is near the limit."""
        if gpu != self.gpu and isinstance(plan.link, str):
            plan = dataclasses.replace(plan, link=None)  # which that GPU may not have; memory does not depend on it
        report = self.of(plan, memory=UNLIMITED).report
        needs = report.reserved + spec(gpu).context
        if abs(spec(gpu).total_memory - needs) < SURE:
            report = self.of(plan, gpu).report
            return report.outcome, report.nvidia_smi
        return DOES_NOT_FIT if needs > spec(gpu).total_memory else report.outcome, needs

    def __str__(self) -> str:
        """One page. Its first line is the answer."""
        report = self.report
        more = []
        if not report.completed:
            more.append(f"It would use up to {size(self.needs)}, as nvidia-smi shows it.")
            if report.smallest:
                more.append(f"The smallest capacity found to fit is {size(report.smallest)}.")
        if self.step:
            more.append(f"A step takes {self.step * 1e3:,.1f} ms on the simulated clock (an estimate).")
        page = dataclasses.replace(report, ended=" ".join([report.ended, *more]).strip())
        return str(page)


def fit(
    model,
    batch=1,
    optimizer: str | None = "adamw",
    *,
    gpu: str = "A100-80GB",
    memory: int | str | None = None,
    loss=None,
    inputs=None,
    tell: Silent = SILENT,
    **plan,
) -> Fit:
    """Whether a model's training fits on a GPU, without the GPU and without the weights.

        fit = simgpu.fit("config.json", batch=8, length=2048, dtype="bf16", lora=16, gpu="RTX 4090")
        print(fit)                                        # one page; its first line is the answer
        fit.fits, fit.peak, fit.parts, fit.largest("batch"), fit.cheapest()

        fit = simgpu.fit(lambda: nn.Linear(8, 8), inputs=lambda n: torch.zeros(n, 8), batch=64, gpu="T4")
        fit = simgpu.fit("config.json", batch=8, gpu="H100", ranks=8, rank=7)     # by FSDP2; parallel="ddp"

    `model`: a config.json of transformers or its folder, a configuration, a name of timm or torchvision, a name of the
    Hub whose config.json is in its local cache, a module, or a function that makes one; for the last two, `inputs`
    gives a batch's tensors (a function of its size), and `loss` (outputs, batch) a scalar. `optimizer`: one of
    simgpu.fitting.optimizers.OPTIMIZERS, or None for inference. `tell`: a `simgpu.fitting.progress.Progress`. Other
    arguments are those of `simgpu.fitting.plan.Plan`. Raises ValueError for what is no model, GPU, size or plan.
    """
    subject = subject_of(model, inputs, loss)
    made = Plan(train=optimizer, batch=batch, **{"length": subject.length, **plan})
    return Fit(subject, made, gpu, None if memory is None else capacity(memory), tell=tell)
