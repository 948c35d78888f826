"""Runs a plan of `simgpu.fit` on the stub engine: what starts it, and, as a program, what runs there.

The program is given a model's name or configuration and the plan, and does what `measuring` does on the meta engine.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from typing import TYPE_CHECKING

from simgpu.fitting.plan import Plan
from simgpu.fitting.subject import Subject, subject_of
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
    report = run(None, [job], module=__name__, chosen=chosen, gpu=gpu, memory=memory)
    if report.ending == STOPPED:
        raise ValueError(f"{subject.name} on the stub engine: {report.ended}")
    return dataclasses.replace(report, what=f"{subject.name} ({plan})")


def main() -> None:
    """The program."""
    from simgpu.fitting import measuring

    job = json.loads(sys.argv[1])
    subject, plan = subject_of(job["model"]), Plan(**job["plan"])
    warnings.simplefilter("ignore")
    model = measuring.model_of(subject, plan)
    if plan.compile:
        model.compile()
    run = measuring.train if plan.train else measuring.serve
    run(model, subject, plan, lambda words: None)


if __name__ == "__main__":
    main()
