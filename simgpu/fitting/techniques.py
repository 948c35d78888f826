"""Effects of the memory-saving techniques on a plan: each alone, and one after the other in the order to apply them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from simgpu.clock.estimates import TimeEstimate, digits, duration
from simgpu.fitting.measuring import UNLIMITED, layers_of
from simgpu.fitting.plan import Plan
from simgpu.report.sizes import mib

if TYPE_CHECKING:
    from simgpu.fitting.fit import Fit

LEAST = 0.01
"""Share of the peak; a technique that saves less is not applied."""


def candidates(plan: Plan, layers: bool = True, dtype: torch.dtype = torch.float32) -> dict[str, dict]:
    """Returns the techniques that change something in a plan, by name, with the fields that they set.

    Those that cost no time come first, and a weaker one before a stronger one of its kind. `layers`: whether the model
    has repeated layers, which checkpointing needs. `dtype`: that of its weights.
    """
    found: dict[str, dict] = {}
    if plan.attention == "eager":
        found["sdpa attention"] = {"attention": "sdpa"}
    if plan.train == "adamw":
        found["fused AdamW"] = {"train": "adamw-fused"}
    if plan.train in ("adamw", "adamw-fused", "adam"):
        found["AdamW with 8-bit states"] = {"train": "adamw-8bit"}
    if dtype == torch.float32 and plan.autocast is None:
        found["bf16 autocast"] = {"autocast": "bf16"}
        found["bf16 weights"] = {"dtype": "bf16"}
    for parts in (2, 4):
        if plan.batch % parts == 0 and plan.batch >= parts:
            changed = {"batch": plan.batch // parts, "accumulate": plan.accumulate * parts}
            found[f"accumulation, {parts} × {plan.batch // parts}"] = changed
    if layers and not plan.checkpoint:
        found["checkpoints, every second layer"] = {"checkpoint": "half"}
    if layers and plan.checkpoint is not True:
        found["checkpoints, every layer"] = {"checkpoint": True}
    if not plan.offload:
        found["activations on the host"] = {"offload": True}
    return found


@dataclass(frozen=True)
class Row:
    """Describes one line of the table.

    `applied`: the techniques. `peak` and `nvidia_smi`: bytes. `step`: seconds of a step on the simulated clock, and
    `time` the estimate from them.
    """

    applied: tuple[str, ...]
    plan: Plan
    peak: int
    nvidia_smi: int
    step: float
    fits: bool
    time: TimeEstimate | None = None


@dataclass(frozen=True)
class Techniques:
    """Holds the results.

    `before`: the plan as it is. `alone`: each technique alone, in the order in which to apply them. `together`: one
    after the other, without those that save nothing more. `best`: with a budget, the fastest plan tried that fits, or
    None.
    """

    name: str
    gpu: str
    before: Row
    alone: tuple[Row, ...]
    together: tuple[Row, ...]
    budget: int | None
    best: Row | None
    unmodeled: str

    def __str__(self) -> str:
        text = [
            f"{self.name} on a simulated {self.gpu}: {self.before.plan}",
            "",
            _header(),
            _line(self.before, self.before, "as it is"),
        ]
        text += [_line(row, self.before, row.applied[-1]) for row in self.alone]
        text += ["", "One after the other, as long as each still saves something:", "", _header()]
        text += [_line(row, self.before, f"+ {row.applied[-1]}") for row in self.together]
        if self.before.time is not None:
            text += ["", f"A step as it is takes {self.before.time}."]
        if self.budget is not None:
            text += ["", self._answer()]
        text += [f"not modelled: {self.unmodeled}"] if self.unmodeled else []
        return "\n".join(text) + "\n"

    def _answer(self) -> str:
        return answer(self.budget or 0, self.best, self.before)


def answer(budget: int, best: Row | None, before: Row) -> str:
    """Returns a sentence that says which combination fits into a budget, and what it costs."""
    within = f"{mib(budget)} MiB"
    if best is None:
        return f"Nothing that was tried fits into {within}."
    how = ", ".join(best.applied) or "nothing: it fits as it is"
    smi = f"{mib(best.nvidia_smi)} MiB in nvidia-smi"
    return (
        f"The fastest that fits into {within}: {how} ({smi}{slower(best, before)}), by the clock's estimates of time."
    )


def slower(row: Row, before: Row) -> str:
    """Returns how long a step takes in comparison with the plan as it is, or "" if no times are known."""
    if row.time is None or before.time is None or row is before:
        return ""
    known = "" if row.time.differs(before.time) else ", and the ranges of both overlap"
    return f", {digits(row.time.seconds / before.time.seconds)} of the time of a step, estimate{known}"


def rows_so_far(rows: list[Row]) -> str:
    """Returns the rows of an interrupted search, with the unchanged plan first."""
    named = [(row, " + ".join(row.applied) or "as it is") for row in rows]
    return "\n".join([_header(), *(_line(row, rows[0], name) for row, name in named)])


def _header() -> str:
    return f"{'peak MiB':>14}{'saved MiB':>14}{'':>8}{'step, est.':>12}{'':>8}"


def _line(row: Row, before: Row, name: str) -> str:
    saved = before.peak - row.peak
    share = f"{100 * saved / before.peak:.1f} %" if row is not before else ""
    step = "" if row.time is None else duration(row.time.seconds)
    times = ""
    if row.time is not None and before.time is not None and row is not before:
        times = f"× {digits(row.time.seconds / before.time.seconds)}"
    return f"{mib(row.peak):>14}{mib(saved):>14}{share:>8}{step:>12}{times:>8}  {name}"


def techniques(fit: Fit, budget: int | None = None, rows: list[Row] | None = None) -> Techniques:
    """Runs the techniques on a fit's plan, without a memory limit other than the budget.

    `rows` is filled while they run. Raises ValueError for a plan of inference.
    """
    runner = _Runner(fit, budget, rows)
    before, found = runner.begin()
    alone = [runner.row((name,), dataclasses.replace(fit.plan, **changed)) for name, changed in found.items()]
    alone.sort(key=lambda row: _merit(row, before), reverse=True)
    together = _together(runner, before, alone, found)
    best = None
    if budget is not None:
        fitting = [row for row in (before, *alone, *together) if row.fits]
        quick = _quickly(runner, before, found)
        best = min(fitting + ([] if quick is None else [quick]), key=lambda row: row.step, default=None)
        best = best and _fewer(runner, best, found, best.applied)
    return Techniques(fit.subject.name, fit.gpu, before, tuple(alone), tuple(together), budget, best, fit.unmodeled)


def _merit(row: Row, before: Row) -> tuple:
    """Returns a sort key: first techniques that cost no time, by bytes saved, then the others by bytes saved per
    second.
    """
    saved, cost = before.peak - row.peak, row.step - before.step
    if saved <= LEAST * before.peak:
        return (0, saved)
    return (2, saved) if cost <= 0 else (1, saved / cost)


def _together(runner: _Runner, before: Row, alone: list[Row], found: dict[str, dict]) -> list[Row]:
    rows, last, fields = [], before, set()
    for row in alone:
        (name,) = row.applied
        if fields & set(found[name]):
            continue  # an alternative is already applied
        tried = runner.row((*last.applied, name), dataclasses.replace(last.plan, **found[name]))
        if tried.peak < last.peak - LEAST * before.peak:
            rows.append(tried)
            fields |= set(found[name])
            last = tried
    return rows


def within(fit: Fit, budget: int, rows: list[Row] | None = None) -> tuple[Row, Row | None]:
    """Returns the plan as it is, and a fast combination of techniques that fits into `budget` bytes, or None.

    It runs once for each technique that is added until the plan fits, and once for each that it tries to remove again;
    `techniques` tries more. `rows` is filled while they run. Raises ValueError for a plan of inference.
    """
    runner = _Runner(fit, budget, rows)
    before, found = runner.begin()
    best = _quickly(runner, before, found)
    return before, best


def _quickly(runner: _Runner, before: Row, found: dict[str, dict]) -> Row | None:
    """Adds techniques until the plan fits, then removes those that made a step slower and are not needed.

    Techniques that cost no time come first. Returns None if the plan never fits.
    """
    last, slow = before, []
    for name, fields in found.items():
        if last.fits:
            break
        # a stronger one replaces a weaker one
        others = [one for one in last.applied if not set(found[one]) & set(fields)]
        tried = runner.combined((*others, name), found)
        if tried.fits or tried.peak < last.peak - LEAST * before.peak:
            slow += [name] if tried.step > last.step else []
            last = tried
    return _fewer(runner, last, found, slow) if last.fits else None


def _fewer(runner: _Runner, best: Row, found: dict[str, dict], names) -> Row:
    """Returns the row without those of the named techniques whose removal still fits and is not slower."""
    for name in names:
        rest = tuple(one for one in best.applied if one != name)
        if len(rest) == len(best.applied):
            continue
        tried = runner.combined(rest, found)
        if tried.fits and tried.step <= best.step:
            best = tried
    return best


class _Runner:
    """Runs plans on a GPU of any size, and checks whether they fit into the budget."""

    def __init__(self, fit: Fit, budget: int | None, rows: list[Row] | None = None):
        if fit.plan.train is None:
            raise ValueError("the techniques are those of training, and the plan is of inference")
        self.fit, self.budget = fit, budget
        self.rows = [] if rows is None else rows

    def begin(self) -> tuple[Row, dict[str, dict]]:
        """Returns the plan as it is, and the techniques for it."""
        before = self.row((), self.fit.plan)
        dtype = self.fit.of(self.fit.plan, memory=UNLIMITED).dtype
        return before, candidates(self.fit.plan, self.has_layers(), dtype or torch.float32)

    def combined(self, applied: tuple[str, ...], found: dict[str, dict]) -> Row:
        """Returns the row of the plan with several techniques."""
        changed = {key: value for name in applied for key, value in found[name].items()}
        return self.row(applied, dataclasses.replace(self.fit.plan, **changed))

    def row(self, applied: tuple[str, ...], plan: Plan) -> Row:
        found = self.fit.of(plan, memory=UNLIMITED)
        report = found.short
        fits = self.budget is not None and self._fits(plan, report)
        row = Row(applied, plan, report.peak, report.nvidia_smi, found.step, fits, found.time)
        if row not in self.rows:
            self.rows.append(row)
        return row

    def _fits(self, plan: Plan, report) -> bool:
        """Returns whether a plan fits into the budget. Near the limit it runs, because the cache may make room."""
        assert self.budget is not None
        if report.nvidia_smi <= self.budget:
            return True
        if report.peak + report.context > self.budget or self.budget <= report.context:
            return False
        return self.fit.of(plan, memory=self.budget).short.completed

    def has_layers(self) -> bool:
        """Returns whether the model has repeated layers."""
        with torch.device("meta"):
            return bool(layers_of(self.fit.subject.build(None)))
