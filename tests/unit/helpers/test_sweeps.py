"""Sweeps: exact differences, fits, and stopping at an out-of-memory error."""

import gc

import pytest
import torch

import labkit
from helpers.sweeps import Sweep, sweep
from labkit.units import MiB


def test_a_sweep_stops_where_memory_ends_and_leaves_nothing_behind():
    def measure(size):
        x = torch.empty(size, MiB, dtype=torch.uint8, device="cuda")
        return x.numel()

    with labkit.simulated_gpu("A100-80GB") as gpu:
        result = sweep(measure, [20_000, 40_000, 60_000, 80_000, 100_000, 120_000], name="size")
        assert torch.cuda.memory_allocated() == 0
        assert 80_000 * MiB < gpu.total_memory < 100_000 * MiB
        assert result.stopped == 100_000
        assert result.measured == [size * MiB for size in (20_000, 40_000, 60_000, 80_000)]
        table = result.table()
        assert table.index.name == "size"
        assert table.columns.name == "simulated A100-80GB"
        assert table.loc[40_000, "measured (MiB)"] == 40_000


def test_differences_are_exact():
    square = Sweep("length", [2, 4, 6, 8], [3 * n * n + 2**70 for n in (2, 4, 6, 8)])
    assert square.differences() == [36, 60, 84]
    assert square.differences(2) == [24, 24]
    with pytest.raises(ValueError, match="equally spaced"):
        Sweep("length", [1, 2, 4], [1, 2, 3]).differences()


def test_fit_recovers_a_polynomial_in_mib():
    sizes = list(range(64, 513, 64))
    line = Sweep("length", sizes, [MiB * n * n // 64 + 7 * MiB for n in sizes])
    constant, slope, square = line.fit(2).convert().coef
    assert square == pytest.approx(1 / 64)
    assert slope == pytest.approx(0, abs=1e-6)
    assert constant == pytest.approx(7)
    with pytest.raises(ValueError, match="degree 2, 4 sizes or more are wanted, not 3"):
        Sweep("length", [1, 2, 3], [1, 2, 3]).fit(2)


def test_another_error_is_not_swallowed():
    def measure(size):
        raise KeyError(size)

    with labkit.simulated_gpu("A100-80GB"), pytest.raises(KeyError):
        sweep(measure, [1])


def test_what_a_cycle_keeps_is_gone_before_the_next_call_and_garbage_is_collected_as_ever():
    class Cycle:
        def __init__(self, size):
            self.me, self.x = self, torch.empty(size * MiB, dtype=torch.uint8, device="cuda")

    def measure(size):
        before = torch.cuda.memory_allocated()
        Cycle(size)
        return before

    frozen = gc.get_freeze_count()
    with labkit.simulated_gpu("T4"):
        assert sweep(measure, [1, 2, 4]).measured == [0, 0, 0]
        with pytest.raises(ZeroDivisionError):
            sweep(lambda size: 1 // 0, [1])
    assert gc.get_freeze_count() <= frozen
