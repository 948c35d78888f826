"""Says how long a run on the stub engine would be on a GPU: estimates from its clock, and what they are based on."""

from __future__ import annotations

from typing import Any

from simgpu.clock.clock import Reading
from simgpu.clock.estimates import digits, estimated
from simgpu.report.sizes import size

SHOWN = 3
"""Launches without a time that are named."""


def fields(found: dict[str, Any], gpu: str) -> dict[str, Any]:
    """Returns the fields of a report about time. `found`: what `timing.document` returned; empty if no GPU was used.

    There is no time at all if anything that was launched has none.
    """
    why = found.get("why", "") or (_without(found["untimed"]) if found.get("untimed") else "")
    if why or not found:
        return {"seconds": 0.0, "timed": f"No time is estimated {why}." if why else ""}
    run, step = (None if found[name] is None else Reading(*found[name]) for name in ("run", "step"))
    return {
        "seconds": run.seconds if run else 0.0,
        "time": estimated(run, gpu) if run else None,
        "step": step.seconds if step else 0.0,
        "step_time": estimated(step, gpu) if step else None,
        "timed": based_on(found),
    }


def _without(untimed: dict[str, int]) -> str:
    """Returns the reason for which there is no time, with the names of what has none and how often it was launched."""
    names = sorted(untimed, key=lambda name: -untimed[name])
    shown = [f"{name} (launched {_times(untimed[name])})" for name in names[:SHOWN]]
    more = [f"{len(names) - SHOWN} others"] if len(names) > SHOWN else []
    return f"because it is not known of {', '.join([*shown, *more])}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def based_on(found: dict[str, Any]) -> str:
    """Returns a sentence that says what the times are based on, or why there are none."""
    parts = [f"{found['operators']:,} calls of PyTorch's operators"] if found["operators"] else []
    if found["kernels"]:
        nbytes = f"{digits(found['nbytes'] / 1e9, 3)} GB" if found["nbytes"] >= 1e9 else size(found["nbytes"])
        parts.append(
            f"{found['kernels']:,} launches of kernels that Inductor generated, which move {nbytes} by its count"
        )
    if found["replays"]:
        parts.append(f"{found['replays']:,} replays of CUDA graphs, each a single launch")
    if found["cut"] and (found["step"] is None or not parts):
        return f"No time is estimated because {found['cut']}."
    if not parts:
        return ""
    cut = f" There is no time of the whole run, because {found['cut']}." if found["cut"] else ""
    return f"Times are estimated from what was launched: {'; '.join(parts)}.{cut}"
