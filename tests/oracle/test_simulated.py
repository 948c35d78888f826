"""The simulated GPU does what the oracle did: every event and every counter, in each workload known to be equal.

The oracle is PyTorch's CUDA host code under stub libraries; no GPU was involved. `python -m tools.oracle compare
--keep` adds to the workloads that are known to be equal; none is taken away for a rule that broke it.

Of the random networks one in four is run, and of BERT large, which is BERT base at other sizes, one workload in four.
Of those in which the oracle itself did on an A100 what it did on an H100, one in sixteen is run on the A100 too, and of
those in which it did otherwise one in eight; the weekly comparison
with the oracle (.github/workflows/oracle.yml) runs all on both. `pytest --exactness` runs every stored workload, known
to be equal or not, and writes down how each compares.
"""

import re
import sys
from importlib import metadata
from textwrap import shorten

import pytest

from simgpu.recording.trace import Trace
from tests.exactness import ORACLE
from tools.oracle import run, store
from tools.oracle.report import Comparison, report
from tools.oracle.run import DEFAULT_VERSION
from tools.oracle.workloads import RANDOM

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the worker forks, which is safe on Linux only"),
    pytest.mark.usefixtures("forked_programs"),
]
FIRST = "H100"
ERROR = re.compile(r"[\w.]+(?:Error|Exception): ([^\n]*)")


@pytest.mark.parametrize("gpu", ["A100-80GB", FIRST])
def test_workloads_known_to_be_equal_are(gpu, tmp_path, exactness):
    version = metadata.version("torch").split("+")[0]
    known = store.known_equal(gpu)
    names = {path.name.split(".")[0] for path in (store.RECORDED / gpu).iterdir()} if exactness.asked else set(known)
    names |= {*exactness.claimed(f"peaks, {gpu}"), *exactness.claimed(f"out of memory, {gpu}")}
    expected = {name: store.stored(name, gpu, version, cached=exactness.asked) for name in sorted(names)}
    expected = {name: trace for name, trace in expected.items() if trace is not None}
    if not exactness.asked:
        run_here = some({name: trace for name, trace in expected.items() if name in known}, gpu, version)
        expected = {name: trace for name, trace in expected.items() if name in run_here or name not in known}
    if not expected:
        assert version != DEFAULT_VERSION, "no stored trace is taken for one of this version"
        pytest.skip(f"the stored traces are of other versions than torch {version}")
    differing = []
    for name, log in run.record(expected, gpu, tmp_path):
        if log is not None:
            note_failure(exactness, gpu, expected[name], log)
            differing += [f"FAILED   {name}\n{log}"] if name in known else []
            continue
        comparison = Comparison(expected[name], Trace.load(tmp_path / f"{name}.json.gz"))
        note(exactness, gpu, comparison)
        if name in known and not comparison.equal:
            differing.append(report(comparison, limit=1))
    assert not differing, "\n".join(differing)


def some(expected, gpu, version):
    """The names of the workloads that are run where not all are."""
    if gpu == FIRST:
        alike = [[name for name in expected if name.startswith(prefix)] for prefix in (RANDOM, "bert_large")]
        return {*expected}.difference(*alike).union(*(names[::4] for names in alike))
    alike = [name for name in expected if like_on_the_first(expected[name], version)]
    others = [name for name in expected if name not in alike]
    return {*alike[::16], *others[::8]}


def like_on_the_first(trace, version):
    """Whether the oracle's blocks were the same on the first GPU, but for the workspaces of cuBLAS, whose size it asks
    the GPU for."""
    first = store.stored(trace.workload, FIRST, version, cached=False)
    return first is not None and of_blocks(first) == of_blocks(trace)


def of_blocks(trace):
    events = [(event.action, event.size) for event in trace.events if "Workspace" not in event.where]
    stages = [(stage.name, stage.stats["allocation.all.current"]) for stage in trace.stages]
    return [event for event in events if event[0] in ("alloc", "free_completed")], stages


def note(exactness, gpu, comparison):
    """Write down a workload's event stream, its peaks and reserved memory, and its error if it ends in one."""
    expected, actual = comparison.expected, comparison.actual
    events, wrong = len(expected.events), min(len(comparison.differences), len(expected.events))
    difference = "" if comparison.equal else f"{comparison.verdict().partition(': ')[2]}; first {comparison.first()}"
    exactness(2, of_events(expected, gpu), ORACLE, "events", expected.workload, events, events - wrong, difference)
    pairs = list(zip(expected.stages, actual.stages, strict=False))
    stages = len(expected.stages)
    equal = sum((ours.peak, ours.reserved) == (theirs.peak, theirs.reserved) for ours, theirs in pairs)
    exactness(
        3,
        f"peaks, {gpu}",
        ORACLE,
        "stages",
        expected.workload,
        stages,
        equal,
        "" if equal == stages else f"peak {comparison.peak_error:+.3%}, or reserved",
        {
            "peak": expected.peak,
            "simulated peak": actual.peak,
            "reserved": most_reserved(expected),
            "simulated reserved": most_reserved(actual),
        },
    )
    if fails(expected):
        same = expected.oom == actual.oom and not comparison.hunks
        texts = "" if same else f"the oracle: {expected.oom!r}; simulated: {actual.oom!r}; {comparison.first()}"
        exactness(5, f"out of memory, {gpu}", ORACLE, "errors", expected.workload, 1, int(same), texts)


def note_failure(exactness, gpu, expected, log):
    """Write down a workload that the simulated GPU could not run."""
    said = ERROR.findall(log)
    difference = f"the simulated GPU stops: {shorten(said[-1], 120) if said else 'no message'}"
    exactness(2, of_events(expected, gpu), ORACLE, "events", expected.workload, len(expected.events), 0, difference)
    exactness(3, f"peaks, {gpu}", ORACLE, "stages", expected.workload, len(expected.stages), 0, difference)
    if fails(expected):
        exactness(5, f"out of memory, {gpu}", ORACLE, "errors", expected.workload, 1, 0, difference)


def of_events(trace, gpu):
    return f"{'random networks' if trace.workload.startswith(RANDOM) else 'workloads'}, {gpu}"


def fails(trace):
    return any(event.action == "oom" for event in trace.events)


def most_reserved(trace):
    return max(stage.reserved for stage in trace.stages)


def test_the_page_claims_no_event_stream_that_is_not_known_to_be_equal(exactness):
    if exactness.asked:
        pytest.skip("the page is being written")
    for gpu in ("A100-80GB", "H100"):
        claimed = {*exactness.claimed(f"workloads, {gpu}"), *exactness.claimed(f"random networks, {gpu}")}
        assert claimed <= set(store.known_equal(gpu))
