"""The program that runs a plan of `simgpu.fit` on the stub engine.

Its argument is JSON with a model's name or configuration and the plan.
"""

import json
import sys
import warnings

from simgpu.fitting import measuring
from simgpu.fitting.plan import Plan
from simgpu.fitting.subject import subject_of


def main() -> None:
    """Makes the model and runs the plan's steps."""
    job = json.loads(sys.argv[1])
    subject, plan = subject_of(job["model"]), Plan(**job["plan"])
    warnings.simplefilter("ignore")
    model = measuring.model_of(subject, plan)
    if plan.compile:
        model.compile()
    if plan.train:
        measuring.train(model, subject, plan, lambda words: None, measuring.reference_of(subject, plan))
    else:
        measuring.serve(model, subject, plan, lambda words: None)


if __name__ == "__main__":
    main()
