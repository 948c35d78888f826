"""Run a workload once more on the simulated GPU, whole or with one rule missing, and compare it with the oracle."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from simgpu.dispatch import op_traits, stages
from simgpu.ops import rule_for
from simgpu.recording.history import record
from simgpu.recording.trace import Trace
from tools.oracle import labels, store
from tools.oracle.report import Comparison
from tools.oracle.simulated import simulated_gpu
from tools.oracle.workloads import find


def compare(workload: str, gpu: str = "A100-80GB") -> Comparison:
    """The oracle's stored trace of a workload, and what the simulated GPU does now."""
    gc.freeze()  # a workload collects garbage at each stage, which would scan all imported modules
    try:
        with simulated_gpu(gpu), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            simulated, _ = record(workload, find(workload), {}, where=labels.where)
    finally:
        gc.unfreeze()
    return Comparison(Trace.load(store.path(workload, gpu)), simulated)


@contextmanager
def without_rule(operator) -> Iterator[None]:
    """Inside it the simulated GPU has no rule for `operator`, which then allocates its outputs and nothing else."""
    with patch.object(op_traits, "rule_for", lambda one: None if one is operator else rule_for(one)):
        stages.traits_of.forget()
        yield
    stages.traits_of.forget()
