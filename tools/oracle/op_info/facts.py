"""Runs one sample on the "cuda" of this process and notes what can be compared."""

from __future__ import annotations

import gc
import warnings
import zlib
from collections.abc import Callable

import torch

from simgpu.recording.trace import LETTERS
from tools.oracle.op_info.moving import described, tensors_in

LAST_WITH_EXPANDED = 3  # of four samples the last gets its gradient from a sum, which is one number expanded


def run(sample, number: int, where: Callable | None = None) -> dict:
    """What a sample did: events, counters, results, gradients, or its error.

    `events`: "a512 f512", letters of `trace.LETTERS` and bytes. `counters`: allocated, peak and reserved after forward
    and after backward. `results`, `grads`: what the tensors are. `error`: "Type: message", and `stage` where it was.
    `where`: makes a label of the stack of each event, `labels`. A sample that cannot even be brought to "cuda" has its
    error in the stage "make".
    """
    facts: dict = {"sample": f"{zlib.crc32(sample.text.encode()):08x}", "stage": "make"}
    gc.collect()
    torch._C._set_cudnn_enabled(False)  # only a GPU can tell what cuDNN takes
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _forward_and_backward(sample, number, where, facts)
        except Exception as raised:
            facts["error"] = f"{type(raised).__name__}: {raised}"
    gc.collect()
    if facts["stage"] == "make":
        return facts
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    kept = [event for event in history if event["action"] in LETTERS and event["action"] != "free_requested"]
    facts["events"] = " ".join(f"{LETTERS[event['action']]}{event['size']}" for event in kept)
    if where is not None:
        facts["labels"] = [where(event.get("frames", ())) for event in kept]
    return facts


def _forward_and_backward(sample, number: int, where: Callable | None, facts: dict) -> None:
    call, leaves = sample.make()
    torch.manual_seed(number)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    how = {"context": None} if where is None else {"context": "all", "stacks": "all"}
    torch.cuda.memory._record_memory_history(clear_history=True, **how)
    facts["stage"] = "forward"
    result = call()
    facts["counters"] = [_counters()]
    facts["results"] = [described(result)]
    wanted = [one for one in tensors_in(result) if one.requires_grad and one.grad_fn is not None]
    if leaves and wanted:
        facts["stage"] = "backward"
        _backward(wanted, number)
        facts["counters"].append(_counters())
        facts["grads"] = [described(one.grad) for one in leaves]
    facts["stage"] = "end"
    del result, wanted


def _backward(outputs: list[torch.Tensor], number: int) -> None:
    if number % (LAST_WITH_EXPANDED + 1) == LAST_WITH_EXPANDED and all(one.is_floating_point() for one in outputs):
        sum(one.sum() for one in outputs).backward()
    else:
        torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def _counters() -> list[int]:
    return [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()]
