"""The memory history, event by event: curve, living requests, and the moment of the peak."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import labkit
from helpers.models import ThreeLinear
from labkit.formulas import block
from labkit.ledger import Ledger, alive_after, allocated, at_peak


def test_alive_at_the_peak_is_what_the_counter_counts():
    with labkit.simulated_gpu("A100-80GB"):
        ledger = Ledger(history=True)
        with ledger("model and input"):
            model, x = ThreeLinear().cuda(), torch.zeros(10_240, 1024, device="cuda")
        with ledger("forward"):
            loss = model(x).sum()
        with ledger("backward"):
            loss.backward()
        alive = ledger.alive_at_peak("backward")
        assert sum(map(block, alive.values())) == ledger["backward"].peak
        assert alive[x.data_ptr()] == x.nbytes
        for stage in ("forward", "model and input"):
            assert sum(map(block, ledger.alive_at_peak(stage).values())) == ledger[stage].peak
        events = ledger.events("backward")
        assert events["allocated after it (MiB)"].max() * 2**20 == ledger["backward"].peak
        assert events["allocated after it (MiB)"].iloc[-1] * 2**20 == ledger["backward"].after
        assert set(events["action"]) == {"alloc", "free"}


def test_a_stage_that_only_frees_peaks_at_its_start():
    with labkit.simulated_gpu("A100-80GB"):
        ledger = Ledger(history=True)
        with ledger("one"):
            x = torch.zeros(1000, device="cuda")
        with ledger("none"):
            x = None
        assert list(ledger.alive_at_peak("none").values()) == [4000]
        assert x is None


def test_without_history_it_says_what_is_missing():
    with labkit.simulated_gpu("A100-80GB"):
        ledger = Ledger()
        with ledger("one"):
            torch.zeros(1000, device="cuda")
        for ask in (ledger.alive_at_peak, ledger.events):
            with pytest.raises(RuntimeError, match="history=True"):
                ask("one")


@given(st.lists(st.integers(min_value=1, max_value=10**7), max_size=30), st.randoms())
def test_the_curve_is_the_sum_of_what_is_alive(sizes, random):
    trace, living = [], []
    for address, size in enumerate(sizes):
        trace.append({"action": "alloc", "addr": address, "size": size})
        living.append((address, size))
        while living and random.random() < 0.4:
            freed, size_of_freed = living.pop(random.randrange(len(living)))
            trace.append({"action": "free_requested", "addr": freed, "size": size_of_freed})
            trace.append({"action": "free_completed", "addr": freed, "size": size_of_freed})
    curve = allocated(trace)
    for number in range(len(trace)):
        assert curve[number] == sum(map(block, alive_after(trace[: number + 1]).values()))
    if trace:
        assert sum(map(block, at_peak(trace, 0, len(trace)).values())) == max(curve)
