"""The first batch size that does not fit: which it is, where it fails, and every word and number of the message.

The other side is the oracle, PyTorch's CUDA host code under stub libraries, no GPU:
`python -m tools.oracle record 'limit_*'` made its traces. Its device has the simulated GPU's memory and context.
"""

from importlib import metadata

import pytest

from tests import workloads
from tests.exactness import ORACLE
from tools.oracle import store
from tools.oracle.record import record
from tools.oracle.simulated import simulated_gpu
from tools.oracle.trace import Trace

FIRST = {"limit_bert_base": 67, "limit_gpt2": 28, "limit_mlp": 665}  # on an A100-80GB of which a tenth may be used


def failing_operator(trace: Trace) -> str:
    """The ATen operator whose request was refused for good."""
    last = [event for event in trace.events if event.action == "oom"][-1]
    return last.where.partition("|")[0].rpartition("/")[2]


def answers(trace: Trace) -> dict[str, object]:
    """What is compared of a trace."""
    return {
        "batch sizes tried": [stage.name for stage in trace.stages],
        "failing operator": failing_operator(trace),
        "refused requests": [event.size for event in trace.events if event.action == "oom"],
        "message": trace.oom,
        "counters after the error": trace.stages[-1].stats,
    }


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
def test_the_first_batch_that_does_not_fit(name, gpu, exactness):
    if gpu == "H100" and not exactness.asked:
        pytest.skip("as long again; compared when the page of the accuracy ladder is written")
    oracle = store.stored(name, gpu, metadata.version("torch").split("+")[0])
    if oracle is None:
        pytest.skip("the stored trace is of another version of torch or transformers")
    with simulated_gpu(gpu):
        simulated = record(name, workloads.find(name), {})
    wanted, found = answers(oracle), answers(simulated)
    differing = [question for question in wanted if wanted[question] != found[question]]
    exactness(
        5,
        "the first batch size that does not fit",
        ORACLE,
        "answers (batch sizes, operator, requests, message, counters)",
        f"{name}, {gpu}",
        len(wanted),
        len(wanted) - len(differing),
        ", ".join(differing),
    )
    assert not differing
    assert oracle.oom.startswith("CUDA out of memory. Tried to allocate ")
    if gpu == "A100-80GB":
        assert oracle.stages[-2].name == f"the first that fails is {FIRST[name]}"
