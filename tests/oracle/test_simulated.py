"""The simulated GPU does what the oracle did: every event and every counter, in each workload known to be equal.

The oracle is PyTorch's CUDA host code under stub libraries; no GPU was involved. `python -m tools.oracle compare
--keep` adds to the workloads that are known to be equal; none is taken away for a rule that broke it.
"""

import sys
from importlib import metadata

import pytest

from tools.oracle import run, store
from tools.oracle.report import Comparison, report
from tools.oracle.trace import Trace

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the worker forks, which is safe on Linux only"
)


@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
def test_workloads_known_to_be_equal_are(gpu, tmp_path):
    version = metadata.version("torch").split("+")[0]
    expected = {name: store.stored(name, gpu, version) for name in store.known_equal(gpu)}
    expected = {name: trace for name, trace in expected.items() if trace is not None}
    if not expected:
        pytest.skip(f"the stored traces are of other versions than torch {version} and the transformers installed")
    differing = []
    for name, log in run.record(expected, gpu, tmp_path):
        if log is not None:
            differing.append(f"FAILED   {name}\n{log}")
            continue
        comparison = Comparison(expected[name], Trace.load(tmp_path / f"{name}.json.gz"))
        if not comparison.equal:
            differing.append(report(comparison, limit=1))
    assert not differing, "\n".join(differing)
