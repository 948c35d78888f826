"""The processes of a run on its page: the answer for all of them, and a section for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simgpu.report.sizes import mib, size
from simgpu.report.verdict import DOES_NOT_FIT, FAILED, FITS, to_spare

if TYPE_CHECKING:
    from simgpu.report.report import Report


SHOWN = 8
"""Processes that get a section; of the others the page says how many there are."""


def headline(report: Report) -> str:
    """The answer for a program and the processes that it has started."""
    used = [one for one in (report, *report.processes) if one.nvidia_smi]
    gpu, verdict = f"a simulated {report.gpu}", report.verdict
    which = next((title(one) for one in report.processes if one.outcome == verdict.outcome), report.what)
    if verdict.outcome == FITS:
        first = f"{report.what} fits on {gpu}, with {to_spare(verdict)}."
    elif verdict.outcome == DOES_NOT_FIT:
        first = f"{report.what} does not fit on {gpu}: {which} ran out of memory."
    elif verdict.outcome == FAILED:
        ended = next((one.ended for one in report.processes if one.outcome == FAILED), report.ended)
        first = f"{report.what} failed on {gpu}, and not because of memory: {which}: {ended}"
    else:
        first = f"{report.what} on {gpu}: undecided. {which}: {verdict.reason}."
    most = max(used, key=lambda one: one.nvidia_smi)
    many = f"{len(used)} processes used the GPU. The most is" if len(used) > 1 else "One process used the GPU:"
    memory = f"{mib(most.nvidia_smi)} of {size(most.total_memory)}, as nvidia-smi shows it"
    return f"{first}\n{many} {memory}, of {title(most)}."


def different(report: Report) -> list[tuple[Report, Report | None]]:
    """Returns the processes that get a section, each with the first one before it whose figures are equal, or None."""
    found: list[tuple[Report, Report | None]] = []
    before: dict[str, Report] = {}
    for one in report.processes[:SHOWN]:
        alike = before.setdefault(_figures(one), one)
        found.append((one, None if alike is one else alike))
    return found


def sections(report: Report, body: Callable[[Report], list[str]]) -> list[str]:
    """Returns a section for each process that used the GPU, with what `body` returns for it.

    A process whose figures equal those of an earlier one has a sentence that says so instead.
    """
    found: list[str] = []
    for one, alike in different(report):
        head = f"Process: {title(one)}\n  {end(one)}"
        found += [head, *body(one)] if alike is None else [f"{head}\n  Its memory is that of {title(alike)}."]
    if len(report.processes) > SHOWN:
        found.append(f"{len(report.processes) - SHOWN} more processes used the GPU; report.processes has all of them.")
    return found


def title(report: Report) -> str:
    """Returns the name of a process, with its rank."""
    return report.what if report.rank is None else f"{report.what}, rank {report.rank[0]} of {report.rank[1]}"


def _figures(report: Report) -> str:
    """All that the page says of a process's memory."""
    return repr((report.ending, report.peak, report.reserved, report.parts, report.lines, report.at, report.unmodeled))


def end(report: Report) -> str:
    """Returns how a process ended, in a sentence."""
    if report.outcome == FAILED:
        return f"It failed, and not because of memory: {report.ended}"
    if report.outcome == DOES_NOT_FIT and report.failure is not None:
        asked, free, _ = report.failure
        return f"It ran out of memory: it asked for {size(asked)}, and {mib(free)} MiB were free."
    return report.ended or "It ended by itself."


def started(report: Report) -> str:
    """Returns sentences about started programs, in addition to the reports."""
    return "\n".join(["Programs that it started", *(f"  {one}" for one in report.started)]) if report.started else ""
