"""The first batch size that does not fit: which it is, where it fails, and every word and number of the message.

The other side is the oracle, PyTorch's CUDA host code under stub libraries, no GPU. Its device has the simulated GPU's
memory and context. `python -m tools.oracle record 'limit_*'` made its traces, in which the size is searched for.
"""

from importlib import metadata

import pytest
import torch

from tests.exactness import ORACLE
from tools.oracle import labels, store
from tools.oracle.simulated import simulated_gpu
from tools.oracle.workloads import batch_limit

FIRST = {  # of a tenth of the device
    ("bert_base", "A100-80GB"): 67,
    ("bert_base", "H100"): 67,
    ("gpt2", "A100-80GB"): 28,
    ("gpt2", "H100"): 28,
    ("mlp", "A100-80GB"): 665,
    ("mlp", "H100"): 661,
}


def answers(stages: list[str], refused: list[tuple[int, str]], message: str, stats: dict) -> dict[str, object]:
    """What is compared of a run: `refused` has the bytes of each refused request and where it came from, as text."""
    return {
        "first batch size that fails": int(stages[-1].rpartition(" ")[2]),
        "failing operator": refused[-1][1].partition("|")[0].rpartition("/")[2],
        "refused request": refused[-1][0],
        "message": message,
        "reserved after it": stats["reserved_bytes.all.current"],
    }


def on_oracle(trace) -> dict[str, object]:
    refused = [(event.size, event.where) for event in trace.events if event.action == "oom"]
    return answers([stage.name for stage in trace.stages[:-1]], refused, trace.oom, trace.stages[-1].stats)


def on_simulated(name: str, gpu: str, batch: int) -> dict[str, object]:
    """A step with one sample, one with a batch that just fits, and one with the batch that does not."""
    with simulated_gpu(gpu):
        torch.cuda.set_per_process_memory_fraction(batch_limit.FRACTION)
        model, loss_of = getattr(batch_limit, name)()
        optimizer = torch.optim.AdamW(model.parameters())
        for size in (1, batch - 1):
            loss_of(model, size).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history()
        try:
            loss_of(model, batch).backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            message = str(error)
        else:
            pytest.fail(f"a batch of {batch} fits")
        stats = torch.cuda.memory_stats()
        history = torch.cuda.memory._snapshot()["device_traces"][0]
    refused = [(event["size"], labels.where(event["frames"])) for event in history if event["action"] == "oom"]
    return answers([f"the first that fails is {batch}"], refused, message, stats)


@pytest.mark.parametrize(("name", "gpu"), FIRST)
def test_the_first_batch_that_does_not_fit(name, gpu, exactness):
    oracle = store.stored(f"limit_{name}", gpu, metadata.version("torch").split("+")[0], cached=False)
    if oracle is None:
        pytest.skip("the stored trace is of another version of torch or transformers")
    wanted, found = on_oracle(oracle), on_simulated(name, gpu, FIRST[name, gpu])
    differing = [
        f"{question}: {wanted[question]}, {found[question]}"
        for question in wanted
        if wanted[question] != found[question]
    ]
    exactness(
        5,
        "the first batch size that does not fit",
        ORACLE,
        "answers",
        f"{name}, {gpu}",
        len(wanted),
        len(wanted) - len(differing),
        "; ".join(differing),
    )
    assert not differing
    assert wanted["message"].startswith("CUDA out of memory. Tried to allocate ")
