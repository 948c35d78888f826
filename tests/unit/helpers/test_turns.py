"""Each rank in turn: what they held and sent, how they are played together, and what is refused."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.profiler import record_function

import labkit
from helpers.turns import bubble, in_turn, side_by_side
from labkit.live_tensors import DirtyBaseline

if not dist.is_available():
    pytest.skip("a PyTorch without torch.distributed", allow_module_level=True)

MiB = 2**20


def passed_on(turn):
    """Each rank but the last sends 1 MiB to the next one; the rank's number of MiB lives before."""
    own = torch.empty(turn.rank * MiB, dtype=torch.uint8, device="cuda")
    with turn.measured():
        message = torch.empty(MiB, dtype=torch.uint8, device="cuda")
        if turn.rank > 0:
            dist.recv(message, turn.rank - 1)
        with record_function("forward 0"):
            x = torch.empty(1024, 1024, device="cuda")
            x = x @ x
        if turn.rank < turn.ranks - 1:
            dist.send(message, turn.rank + 1)
        x = message = None
    return own


def test_memory_traffic_and_time_of_each_rank():
    with labkit.simulated_gpu("H100"):
        found = in_turn(passed_on, 3, link=math.inf)
        assert [one.before for one in found.turns] == [0, MiB, 2 * MiB]
        assert [one.sent for one in found.turns] == [MiB, MiB, 0]
        assert [one.sends for one in found.turns] == [1, 1, 0]
        workspace = found.peaks[0] - 9 * MiB  # the message and two matrices, 9 MiB, are below it
        assert workspace > 0
        assert found.peaks == [9 * MiB + workspace + rank * MiB for rank in range(3)]
        assert list(found.memory["allocated before"]) == [0, 1, 2]
        assert [found.in_flight(rank) for rank in range(3)] == [1, 1, 1]
        table = side_by_side({"chain": found, "again": found})
        assert list(table) == ["chain", "again"]
        assert list(table["again"]) == [f"{peak / MiB:,.0f} (1)" for peak in found.peaks]
        assert found.bubble == pytest.approx(2 / 3, abs=0.01)  # one works, two wait
        assert found.ms == pytest.approx(1e3 * found.timeline.seconds, rel=0.2)
        assert found.plot("a chain").axes[0].get_title(loc="left").startswith("Schedule, 66.")
        assert torch.cuda.memory_allocated() == 0


def test_what_is_refused():
    with labkit.simulated_gpu("H100"):
        with pytest.raises(RuntimeError, match="rank 0 measured nothing"):
            in_turn(lambda turn: torch.empty(1, device="cuda"), 2)
        kept = torch.empty(MiB, device="cuda")
        with pytest.raises(DirtyBaseline):
            in_turn(passed_on, 2)
        del kept


def test_a_bubble_on_paper():
    assert bubble(1, 5) == 0
    assert bubble(4, 1) == 3 / 4
    assert bubble(4, 8, stages=2) == 3 / 19
    with pytest.raises(ValueError, match="micro_batches=0"):
        bubble(4, 0)
