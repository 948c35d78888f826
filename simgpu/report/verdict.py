"""The verdict on a run: it fits with N MiB to spare, is too close to call, or does not fit; and the exit status.

A figure can be too low by what is not modelled, and the CUDA context is a published figure. So a run that completed
fits only if the memory to spare exceeds that uncertainty, and a lower bound is never called a fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simgpu.report.sizes import size

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


@dataclass(frozen=True)
class Verdict:
    """One of the four outcomes, its reason, and the bytes to spare.

    `reason`: why the outcome is undecided, or what is set aside of the memory to spare; "" otherwise.
    `spare` is the capacity minus the smallest capacity that was found to fit, or minus the most that nvidia-smi would
    show where no smaller one was tried. It is None for a run that did not complete.
    """

    outcome: str
    reason: str = ""
    spare: int | None = None

    @property
    def status(self) -> int:
        """The exit status: 0 it fits, 1 it does not fit, 2 the program failed, 3 undecided."""
        return STATUS[self.outcome]


def verdict_of(report: Report) -> Verdict:
    """Judges a report: the worst verdict on the program and on the processes that it started.

    A process that ended normally and used no GPU memory counts only where no other process used any.
    """
    if not report.processes:
        return _of_one(report)
    found = [one.verdict for one in report.processes if one.reserved or one.ending != COMPLETED]
    if report.reserved or report.ending != COMPLETED:
        found.append(_of_one(report))
    elif report.bounds:
        found.append(Verdict(UNDECIDED, "; ".join(report.bounds)))
    found = found or [one.verdict for one in report.processes]
    spare = min((one.spare for one in found if one.spare is not None), default=None)
    worst = min(found, key=lambda one: WORST.index(one.outcome))
    return replace(worst, spare=spare if worst.outcome in (FITS, UNDECIDED) else None)


def _of_one(report: Report) -> Verdict:
    if report.ending == OUT_OF_MEMORY:
        return _ran_out(report)
    if report.ending == STOPPED:
        return Verdict(FAILED)
    spare = report.total_memory - (report.smallest or report.nvidia_smi)
    if report.reserved == 0:
        return Verdict(UNDECIDED, "no GPU memory was used" + (f", {report.unused}" if report.unused else ""), spare)
    if report.bounds or report.unmodeled.startswith("about"):
        return Verdict(UNDECIDED, "; ".join(filter(None, (*report.bounds, report.unmodeled))), spare)
    aside = max(ALLOWANCE, round(report.reserved * ALLOWANCE_SHARE)) if report.unmodeled else 0
    if aside and spare < CONTEXT_UNCERTAINTY + aside:
        reason = f"{size(max(spare, 0))} are to spare, and {size(aside)} are set aside for what is not modelled"
        return Verdict(UNDECIDED, f"too close to call: {reason} ({report.unmodeled})", spare)
    if aside:
        return Verdict(FITS, f"{size(aside)} of them are set aside for what is not modelled", spare)
    if spare < CONTEXT_UNCERTAINTY:
        short = f"only {size(spare)} are to spare" if spare else "nothing is to spare"
        reason = f"{short}, and the CUDA context is uncertain by {size(CONTEXT_UNCERTAINTY)}"
        return Verdict(UNDECIDED, f"too close to call: {reason}", spare)
    return Verdict(FITS, spare=spare)


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
