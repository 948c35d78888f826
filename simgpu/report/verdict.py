"""The verdict on a run: it fits with N MiB to spare, is too close to call, or does not fit; and the exit status.

A figure can be too low by what is not modelled, and the CUDA context is a published figure. So a run that completed
fits only if the memory to spare exceeds that uncertainty, and a lower bound is never called a fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from simgpu.report.sizes import MIB, size

if TYPE_CHECKING:
    from simgpu.report.report import Report

COMPLETED, OUT_OF_MEMORY, STOPPED = "completed", "out of memory", "stopped"
"""How a program ended: by itself, by an error because of memory, or by another error."""

FITS, DOES_NOT_FIT, FAILED, UNDECIDED = "fits", "does not fit", "failed", "undecided"
"""Outcomes of a run."""

STATUS = {FITS: 0, DOES_NOT_FIT: 1, FAILED: 2, UNDECIDED: 3}
"""Exit status of the command for each outcome."""

WORST = (DOES_NOT_FIT, FAILED, UNDECIDED, FITS)
"""Outcomes, the one first that is the verdict on a run if any of its processes has it."""

CONTEXT_UNCERTAINTY = 100 * 2**20
"""Bytes by which the CUDA context of a real GPU may differ from the published figure that is simulated."""

ALLOWANCE, ALLOWANCE_SHARE = 2**30, 0.1
"""Bytes, and share of the reserved peak, set aside for memory that is not modelled, such as cuDNN's workspaces.

This is an allowance and not a measurement. A convolution whose workspace does not fit is run with the next plan that
cuDNN offers (aten/src/ATen/native/cudnn/Conv_v8.cpp, `try_plans`), so workspaces shrink where memory is short.
"""


class Margin(NamedTuple):
    """What the bytes to spare are made of: what the GPU has, and what is used of it (below 0). Their sum is to spare.

    `context` and `reserved` together are what nvidia-smi would show at most. `cache` of it is not needed: the smallest
    capacity that was found to fit is as much below that figure. It is 0 where no smaller capacity was tried.
    """

    total_memory: int
    context: int
    reserved: int
    cache: int


def margin_of(report: Report) -> Margin:
    """Returns the margin of a run that completed."""
    cache = report.nvidia_smi - (report.smallest or report.nvidia_smi)
    return Margin(report.total_memory, report.reserved - report.nvidia_smi, -report.reserved, cache)


@dataclass(frozen=True)
class Verdict:
    """One of the four outcomes, its reason, and the bytes to spare.

    `reason`: why the outcome is undecided, or what is set aside of the memory to spare; "" otherwise.
    `spare`: the sum of `margin`. Both are None for a run that did not complete. `uncertainty`: the bytes by which
    `spare` may differ on a real GPU. `set_aside`: bytes of it for what is not modelled. A run fits only if it has more
    to spare than these two.
    """

    outcome: str
    reason: str = ""
    spare: int | None = None
    uncertainty: int = 0
    set_aside: int = 0
    margin: Margin | None = None

    def document(self) -> dict:
        """Returns what report.json has of it, in addition to the outcome and the status."""
        margin = None if self.margin is None else self.margin._asdict()
        return {
            "reason": self.reason,
            "spare": self.spare,
            "uncertainty": self.uncertainty,
            "set_aside": self.set_aside,
            "margin": margin,
        }

    @property
    def status(self) -> int:
        """The exit status: 0 it fits, 1 it does not fit, 2 the program failed, 3 undecided."""
        return STATUS[self.outcome]


def to_spare(verdict: Verdict) -> str:
    """Returns the bytes to spare in words, with their uncertainty: "1,234.5 MiB (±100) to spare"."""
    return f"{size(verdict.spare or 0)} (±{verdict.uncertainty // MIB}) to spare"


def verdict_of(report: Report) -> Verdict:
    """Judges a report: the worst verdict on the program and on the processes that it started.

    A process that ended normally and used no GPU memory counts only where no other process used any.
    """
    if not report.processes:
        return of_one(report)
    found = [one.verdict for one in report.processes if one.reserved or one.ending != COMPLETED]
    if report.reserved or report.ending != COMPLETED:
        found.append(of_one(report))
    elif report.bounds:
        found.append(Verdict(UNDECIDED, "; ".join(report.bounds)))
    found = found or [one.verdict for one in report.processes]
    worst = min(found, key=lambda one: WORST.index(one.outcome))
    measured = [one for one in found if one.spare is not None]
    if worst.outcome not in (FITS, UNDECIDED) or not measured:
        return Verdict(worst.outcome, worst.reason)
    return replace(min(measured, key=lambda one: one.spare or 0), outcome=worst.outcome, reason=worst.reason)


def of_one(report: Report) -> Verdict:
    """Judges one process, without those that it started."""
    if report.ending == OUT_OF_MEMORY:
        return _ran_out(report)
    if report.ending == STOPPED:
        return Verdict(FAILED)
    margin = margin_of(report)
    spare = sum(margin)
    if report.reserved == 0:
        reason = "no GPU memory was used" + (f", {report.unused}" if report.unused else "")
        return Verdict(UNDECIDED, reason, spare, margin=margin)
    aside = max(ALLOWANCE, round(report.reserved * ALLOWANCE_SHARE)) if report.unmodeled else 0
    outcome, reason = _judged(report, spare, aside)
    return Verdict(outcome, reason, spare, CONTEXT_UNCERTAINTY, aside, margin)


def _judged(report: Report, spare: int, aside: int) -> tuple[str, str]:
    """Returns the outcome of a run that completed, and its reason. `aside`: bytes for what is not modelled."""
    if report.bounds or report.unmodeled.startswith("about"):
        return UNDECIDED, "; ".join(filter(None, (*report.bounds, report.unmodeled)))
    if aside and spare < CONTEXT_UNCERTAINTY + aside:
        reason = f"{size(max(spare, 0))} are to spare, and {size(aside)} are set aside for what is not modelled"
        return UNDECIDED, f"too close to call: {reason} ({report.unmodeled})"
    if aside:
        return FITS, f"{size(aside)} of them are set aside for what is not modelled"
    if spare < CONTEXT_UNCERTAINTY:
        short = f"only {size(spare)} are to spare" if spare else "nothing is to spare"
        return UNDECIDED, (
            f"too close to call: {short}, and the CUDA context is uncertain by {size(CONTEXT_UNCERTAINTY)}"
        )
    return FITS, ""


def _ran_out(report: Report) -> Verdict:
    """The verdict on a run whose memory ran out: undecided where all that is missing is within the uncertainty."""
    if report.smallest:
        missing, known = report.smallest - report.total_memory, "in all"
    elif report.failure and not report.to_come:
        missing, known = report.failure[0] - report.failure[1], "for the request that failed"
    else:
        return Verdict(DOES_NOT_FIT)
    if missing > CONTEXT_UNCERTAINTY or "allowed;" in (report.failure or (0, 0, ""))[2]:
        return Verdict(DOES_NOT_FIT)
    reason = (
        f"{size(max(missing, 0))} are missing {known}, and the CUDA context is uncertain by {size(CONTEXT_UNCERTAINTY)}"
    )
    return Verdict(UNDECIDED, f"too close to call: {reason}")
