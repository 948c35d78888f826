"""Reads PyTorch's memory history event by event: the bytes allocated after each, and the blocks alive then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from labkit.formulas import block

HELD = {"alloc": 1, "free_requested": -1}  # the events at which a request starts and stops counting as allocated


def allocated(trace: Iterable[Mapping], start: int = 0) -> list[int]:
    """Returns the allocated bytes after each event of ``torch.cuda.memory._snapshot()["device_traces"][0]``.

    ``start`` bytes were allocated when the history began. Requests are rounded up to blocks of 512 B. The remainder
    that may stay with a large block (up to 1 MiB) is not in the history and not in the sum.
    """
    return list(accumulate((HELD.get(e["action"], 0) * block(e["size"]) for e in trace), initial=start))[1:]


def alive(trace: Iterable[Mapping]) -> dict[int, int]:
    """Returns the requests alive after the last event, {address: requested bytes}, in the order in which they were
    made.
    """
    living: dict[int, int] = {}
    for event in trace:
        if event["action"] == "alloc":
            living[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            living.pop(event["addr"], None)  # the default is for a block allocated before the history began
    return living


def at_peak(trace: list[Mapping], first: int, last: int) -> dict[int, int]:
    """Returns the requests alive at the peak of events ``first`` to ``last``, in the form of :func:`alive`."""
    curve = allocated(trace)
    highest = max(range(max(first - 1, 0), max(last, 1)), key=curve.__getitem__) if curve else 0
    return alive(trace[: highest + 1])
