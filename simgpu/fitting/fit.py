"""`simgpu.fit`: whether a plan fits on a GPU, the largest batch that fits, and the GPUs on which it fits."""

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from simgpu.fitting.dtypes import FLOAT8
from simgpu.fitting.measuring import SILENT, UNLIMITED, Measured, measure
from simgpu.fitting.paged import Capacity
from simgpu.fitting.plan import Plan
from simgpu.fitting.progress import Silent
from simgpu.fitting.search import Search
from simgpu.fitting.serving import capacity_of
from simgpu.fitting.subject import Subject, subject_of
from simgpu.gpus.specs import SPECS, spec
from simgpu.report.owners import ACTIVATIONS, DATA, TEMPORARIES
from simgpu.report.report import Report
from simgpu.report.sizes import capacity, mib, size
from simgpu.report.verdict import CONTEXT_UNCERTAINTY, DOES_NOT_FIT, FITS, UNDECIDED

SURE = 2**30
"""Bytes by which the needs of one plan may differ between two GPUs (workspaces, contexts); closer plans run on each
GPU.
"""

LARGEST = 2**20
OF_THE_BATCH = (ACTIVATIONS, TEMPORARIES, DATA)
"""Parts that grow with the batch, if the peak is in the forward or backward pass."""

_OF_THE_REPORT = ("fits", "verdict", "status")
_OF_THE_SHORT_REPORT = (
    *("completed", "peak", "reserved", "nvidia_smi", "total_memory"),
    *("at", "parts", "lines", "unmodeled"),
)


class Fit:
    """Answers what a plan needs on a GPU, and questions about it.

    `fits`, `peak`, `reserved`, `nvidia_smi`, `total_memory` (bytes), `at`, `parts`, `lines` are those of the report.
    `needs`: the bytes that nvidia-smi would show if the GPU were large enough. `step`: seconds of a step on the
    simulated clock. `time`: the estimate from it with its range, `speed`: tokens/s and MFU; None if they are not known.
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
        # results for this model, by plan, GPU and memory
        self._known: dict[tuple, Measured] = {} if known is None else known
        self.measured = self.of(plan)
        self.step, self.time, self.speed = self.measured.step, self.measured.time, self.measured.speed

    @cached_property
    def report(self) -> Report:
        """Returns the report, for a plan that ran out of memory with the smallest capacity that was found to fit.

        The total shortage decides whether such a plan is too close to call.
        """
        report = self.measured.report
        if report.completed:
            return report
        return dataclasses.replace(report, smallest=self.of(self.plan, memory=UNLIMITED).report.smallest)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THE_SHORT_REPORT:
            return getattr(self.measured.short, name)
        if name in _OF_THE_REPORT:
            return getattr(self.report, name)
        raise AttributeError(name)

    def changed(self, **fields) -> "Fit":
        """Returns the fit of another plan for the same model and GPU, such as `fit.changed(batch=4, lora=16)`.

        Raises ValueError for an unknown field of a plan, or an invalid value.
        """
        unknown = fields.keys() - {one.name for one in dataclasses.fields(Plan)}
        if unknown:
            known = ", ".join(one.name for one in dataclasses.fields(Plan))
            raise ValueError(f"a plan has {known}, and no {', '.join(sorted(unknown))}")
        return self.on(self.gpu, self.memory, dataclasses.replace(self.plan, **fields))

    def on(self, gpu: str, memory: int | None = None, plan: Plan | None = None) -> "Fit":
        """Returns the fit of the same model on another GPU, or with another capacity in bytes."""
        return Fit(self.subject, plan or self.plan, gpu, memory, self._known, self.tell)

    @property
    def capacity(self) -> int:
        """Returns the bytes of the GPU's memory."""
        return self.memory or spec(self.gpu).total_memory

    def of(self, plan: Plan, gpu: str | None = None, memory: int | None = None) -> Measured:
        """Returns the measurement of a plan, by default on this GPU.

        Each plan runs once, and one that never reached its GPU's limit does not run again without a limit. A plan with
        figures by formula runs without a limit, and fits if these figures do.
        """
        gpu = gpu or self.gpu
        own = self.memory if gpu == self.gpu else None
        memory = memory or own
        key = plan, gpu, memory
        if key not in self._known:
            limited = self._known.get((plan, gpu, own))
            if memory == UNLIMITED and limited is not None and limited.short.completed and not limited.retried:
                short = dataclasses.replace(limited.short, total_memory=UNLIMITED)
                self._known[key] = dataclasses.replace(limited, short=short)
            else:
                self._known[key] = self._run(plan, gpu, memory)
        return self._known[key]

    def _run(self, plan: Plan, gpu: str, memory: int | None) -> Measured:
        total = plan.budget(memory or spec(gpu).total_memory)
        if not plan.four_bit:
            found = self._measured(plan, gpu, memory if plan.requests is None else total)
            less = total - CONTEXT_UNCERTAINTY
            needed, most = found.short.peak + found.short.context, found.short.nvidia_smi
            if found.short.completed and needed <= less < most and less < (found.report.smallest or most):
                # Near the limit, a second run shows whether the plan fits on a GPU with a larger context by freeing its
                # cache. A run may find a smaller capacity than replays, which search by bisection.
                smaller = self._measured(plan, gpu, less).short
                if smaller.completed:
                    report = dataclasses.replace(found.report, smallest=smaller.nvidia_smi)
                    return dataclasses.replace(found, short=report, replayed=None)
            return found
        found = self._measured(plan, gpu, UNLIMITED)
        fits = found.report.nvidia_smi <= total
        report = dataclasses.replace(
            found.report,
            total_memory=total,
            ending="completed" if fits else "out of memory",
            failure=None if fits else (found.report.nvidia_smi, total, ""),
        )
        return dataclasses.replace(found, short=report, replayed=None)

    def _measured(self, plan: Plan, gpu: str, memory: int | None) -> Measured:
        """Runs a plan and prints the result as progress."""
        with self.tell.running(plan, gpu) as told:
            found = measure(self.subject, plan, gpu, memory, self.tell)
            told.append(f"{mib(found.short.nvidia_smi)} MiB" if found.short.completed else "does not fit")
        return found

    @property
    def needs(self) -> int:
        """Returns the bytes that nvidia-smi would show at most if the GPU were large enough."""
        found = self.measured.short
        return found.nvidia_smi if found.completed else self.of(self.plan, memory=UNLIMITED).short.nvidia_smi

    # Other plans and GPUs

    def largest(self, what: str = "batch") -> int:
        """Returns the largest `batch` or `length` that fits, or 0 if 1 does not. Raises ValueError for another word.

        It fits, and one more does not: both were run. It may be less than an extrapolation from two smaller ones, even
        from what nvidia-smi shows. Reserved memory grows in steps, by whole segments and by the free space in them,
        which no line describes. For the same reason a still larger one may fit again, but the search does not look for
        that.
        """
        *_, search = self.searching(what)
        return search.good

    def searching(self, what: str = "batch", spare: int = 0, known: tuple[int, int] | None = None) -> Iterator[Search]:
        """Searches for the largest that fits, and yields the search after each run.

        `spare`: bytes that stay free. `known`: a first guess, and a number known to be too large. Raises ValueError for
        another word, or for "length" if the model has no length.
        """
        if what not in ("batch", "length"):
            raise ValueError(f"wanted the largest 'batch' or 'length', not {what!r}")
        if what == "length" and self.subject.length is None:
            raise ValueError(f"{self.subject.name} has no length")
        if self.plan.requests is not None:
            raise ValueError("the answer for a server says how many requests fit: leave --largest out")
        if what == "length" and self.plan.dtype == FLOAT8:
            raise ValueError("in fp8 the tokens of a batch are a multiple of 16, so not every length can be tried")
        guess, bad = known or (getattr(self.plan, what) or 1, LARGEST)
        if what == "length" and self.subject.longest is not None:
            guess, bad = min(guess, self.subject.longest), min(bad, self.subject.longest + 1)
        search, total = Search(guess, bad), self.capacity - spare
        yield search
        while not search.done:
            search.tell(*self._fits_with(what, search.guess, total), total)
            yield search

    def _fits_with(self, what: str, value: int, total: int) -> tuple[bool, int, int]:
        """Returns whether the plan fits with another batch or length, the bytes it would use, and how many of them grow
        with it.

        The bytes are those on a GPU of any size. If they exceed the capacity but the tensors alone do not, PyTorch
        frees its cache. In this case the plan runs with the limit.
        """
        plan = dataclasses.replace(self.plan, **{what: value})
        report = self.of(plan, memory=UNLIMITED).short
        fits, grows = report.nvidia_smi <= total, sum(report.parts.get(part, 0) for part in OF_THE_BATCH)
        if report.nvidia_smi > total > report.peak + report.context:
            fits = self.of(plan, memory=None if total == self.capacity else total).short.completed
        return fits, report.nvidia_smi, grows

    def every_gpu(self, names: Iterable[str] = SPECS) -> dict[str, bool]:
        """Returns for each GPU, from the smallest, whether the plan fits on it. GPUs far from the limit are not run."""
        return {name: outcome == FITS for name, outcome in self.each_gpu(names)}

    def each_gpu(self, names: Iterable[str] = SPECS) -> Iterator[tuple[str, str]]:
        """Yields each GPU, from the smallest, and the verdict: "fits", "undecided" or "does not fit".

        GPUs without the compute capability that the plan needs are not among them.
        """
        for name in sorted(names, key=lambda one: SPECS[one].total_memory):
            if self._able(name):
                yield name, self._on(name, self.plan)[0]

    def _able(self, gpu: str) -> bool:
        """Returns whether a GPU has the compute capability that the plan needs."""
        return SPECS[gpu].compute_capability >= self.plan.capability[0]

    def cheapest(self) -> str | None:
        """Returns the smallest GPU on which the plan fits, or None."""
        return next((name for name, fits in self.every_gpu().items() if fits), None)

    def techniques(self, budget: int | str | None = None):
        """Returns what each technique saves on this plan, in the order in which to apply them.

        With a `budget` in bytes (as nvidia-smi shows them), it also finds the fastest combination within it. See
        simgpu.fitting.techniques.
        """
        from simgpu.fitting.techniques import techniques

        return techniques(self, None if budget is None else capacity(budget))

    def table(self, gpus: Iterable[str] | None = None, batches: Iterable[int] = (1, 2, 4, 8, 16, 32)) -> str:
        """Returns a Markdown table of GPUs by batch sizes for a model's README: MiB as nvidia-smi shows them, or a
        dash.
        """
        if self.plan.requests is not None:
            raise ValueError("the table is of batch sizes, and a server has requests: use --every-gpu")
        names = [spec(name).key for name in gpus] if gpus else sorted(SPECS, key=lambda one: SPECS[one].total_memory)
        names = [name for name in names if self._able(name)]
        batches = list(batches)
        rows = [f"| simulated GPU (MiB) | {' | '.join(f'batch {batch}' for batch in batches)} |"]
        rows.append("|---|" + "---:|" * len(batches))
        for name in names:
            cells = []
            for batch in batches:
                plan = dataclasses.replace(self.plan, batch=batch)
                outcome, needs = self._on(name, plan)
                close = " ?" if outcome == UNDECIDED and not self.report.unmodeled else ""
                cells.append("–" if outcome == DOES_NOT_FIT else f"{needs / 2**20:,.0f}{close}")
            rows.append(f"| {name}, {mib(spec(name).total_memory)} | {' | '.join(cells)} |")
        plan = dataclasses.replace(self.plan, batch=batches[0])
        unmodeled = self.report.unmodeled
        words = str(plan).replace(f"batch {plan.batch}", "batch as above", 1)
        own = (
            f"Reserved as on the {self.gpu}, with each GPU's own context; near its limit each was run; "
            "–: does not fit; ?: too close to call."
        )
        rows += ["", f"{self.subject.name}: {words}; simulated. {own}"]
        return "\n".join(rows + ([unmodeled] if unmodeled else [])) + "\n"

    def _on(self, gpu: str, plan: Plan) -> tuple[str, int]:
        """Returns the verdict on a plan on another GPU, and the bytes that nvidia-smi shows there.

        The bytes include that GPU's context. Near its limit the plan runs on that GPU.
        """
        if gpu != self.gpu and isinstance(plan.link, str):
            plan = dataclasses.replace(plan, link=None)  # that GPU may lack the link; memory does not depend on it
        report = self.of(plan, memory=UNLIMITED).short
        needs, total = report.reserved + spec(gpu).context, plan.budget(spec(gpu).total_memory)
        if abs(total - needs) < SURE:
            report = self.of(plan, gpu).report
            return report.outcome, report.nvidia_smi
        return DOES_NOT_FIT if needs > total else report.outcome, needs

    @property
    def serving(self) -> Capacity | None:
        """Returns how many KV blocks and requests a server holds; None for a plan without requests."""
        if self.plan.requests is None:
            return None
        found = self.measured if self.measured.served else self.of(self.plan, memory=UNLIMITED)
        assert found.served is not None and found.dtype is not None
        sizes = self.capacity, found.report.context, found.served, found.dtype
        return capacity_of(self.subject, self.plan, *sizes)

    @property
    def page(self) -> Report:
        """Returns the report with the plan, and with what a plan that does not fit would need."""
        report = self.report
        more = []
        if not report.completed:
            more.append(f"It would use up to {size(self.needs)}, as nvidia-smi shows it.")
            if report.smallest:
                more.append(f"The smallest capacity found to fit is {size(report.smallest)}.")
        if self.time:
            more.append(f"A step takes {self.time}.")
        if self.speed:
            more.append(f"That is {self.speed}.")
        ended = " ".join([report.ended, *more]).strip()
        plan = dataclasses.asdict(self.plan)
        return dataclasses.replace(
            report, ended=ended, plan=plan, needs=self.needs, step=self.step, step_time=self.time, speed=self.speed
        )

    def __str__(self) -> str:
        """Returns one page, whose first line is the answer."""
        return str(self.page)


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
    """Computes whether a model's training fits on a GPU, without the GPU and without the weights.

        fit = simgpu.fit("config.json", batch=8, length=2048, dtype="bf16", lora=16, gpu="RTX 4090")
        print(fit)                                        # one page; its first line is the answer
        fit.fits, fit.peak, fit.parts, fit.largest("batch"), fit.cheapest()
        fit = simgpu.fit(lambda: nn.Linear(8, 8), inputs=lambda n: torch.zeros(n, 8), batch=64, gpu="T4")
        fit = simgpu.fit("config.json", batch=8, gpu="H100", ranks=8, rank=7)     # with FSDP2; parallel="ddp"
        fit = simgpu.fit("config.json", optimizer=None, requests=32, length=8192) # a server: fit.serving

    `model`: a config.json of transformers or its folder, a configuration, a model name of timm or torchvision, a name
    on the Hub whose config.json is in its local cache, a module, or a function that creates one. For the last two,
    `inputs` gives a batch's tensors (a function of the batch size), and `loss` a scalar (a function of outputs and
    batch). `optimizer`: one of simgpu.fitting.optimizers.OPTIMIZERS, or None for inference. `tell`: a
    `simgpu.fitting.progress.Progress`. Other arguments are those of `simgpu.fitting.plan.Plan`. Raises ValueError for
    an invalid model, GPU, size or plan.
    """
    subject = subject_of(model, inputs, loss)
    made = Plan(train=optimizer, batch=batch, **{"length": subject.length, **plan})
    return Fit(subject, made, gpu, None if memory is None else capacity(memory), tell=tell)
