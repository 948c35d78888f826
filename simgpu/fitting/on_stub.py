"""Runs a plan of `simgpu.fit` on the stub engine, by the program `stub_program`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from simgpu.fitting.plan import Plan
from simgpu.fitting.subject import Subject
from simgpu.report.verdict import STOPPED

if TYPE_CHECKING:
    from simgpu.report.report import Report


def measured(subject: Subject, plan: Plan, gpu: str, memory: int | None) -> Report:
    """Runs two steps of the plan, or a prompt and a token more, and returns the report.

    Raises ValueError for a model that is given as an object, because the program runs in a process of its own, and for
    a model that cannot be made or run; EngineError where the engine is not installed.
    """
    from simgpu import engines
    from simgpu.running.stub.run import run

    if subject.source is None:
        raise ValueError("the stub engine takes a config.json or a name, because it makes the model in its own process")
    job = json.dumps({"model": subject.source, "plan": dataclasses.asdict(plan)})
    chosen = engines.choose(engines.STUB, None)
    report = run(None, [job], module="simgpu.fitting.stub_program", chosen=chosen, gpu=gpu, memory=memory)
    if report.ending == STOPPED:
        raise ValueError(f"{subject.name} on the stub engine: {report.ended}")
    return dataclasses.replace(report, what=f"{subject.name} ({plan})")
