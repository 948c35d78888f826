"""The stopwatch says what it timed, on what, and whether that is simulated."""

import pytest
import torch

import labkit
from labkit.gpu import GPU
from labkit.timing import Timing


def test_it_reads_the_simulated_clock_and_says_so():
    with labkit.simulated_gpu("H100"):
        x = torch.ones(2048, 2048, device="cuda")
        with labkit.stopwatch("matmul") as timing:
            assert timing.ms != timing.ms  # not known yet
            x @ x
    assert timing.seconds == timing.ms / 1e3
    assert 0 < timing.host_ms < timing.ms
    assert timing.estimate is not None and timing.estimate.clock == timing.seconds
    assert str(timing) == repr(timing) == f"matmul: {timing.estimate.short} (simulated H100)"
    timing.name = ""
    assert str(timing) == f"{timing.estimate.short} (simulated H100)"


def test_a_time_of_a_real_gpu_has_all_its_digits():
    timing = Timing("", GPU(False, "NVIDIA T4", 2**34), ms=12.3456)
    assert str(timing) == "12.346 ms (NVIDIA T4)"


def test_a_backward_pass_makes_it_training():
    with labkit.simulated_gpu("H100"):
        x = torch.ones(2048, 2048, device="cuda", requires_grad=True)
        with labkit.stopwatch() as forward:
            loss = (x @ x).sum()
        with labkit.stopwatch() as backward:
            loss.backward()
    assert [one.estimate.work.split()[0] for one in (forward, backward)] == ["inference", "training"]


def test_an_error_inside_is_the_caller_s():
    with labkit.simulated_gpu(), pytest.raises(KeyError), labkit.stopwatch():
        raise KeyError("theirs")


def test_the_host_s_work_counts():
    with labkit.simulated_gpu():
        with labkit.stopwatch() as timing:
            labkit.host_work(0.25)
        assert timing.ms == pytest.approx(250, rel=1e-3)
        assert timing.host_ms == pytest.approx(250, rel=1e-3)
        with pytest.raises(ValueError, match="cannot work for -1 s"):
            labkit.host_work(-1)


def test_the_host_s_work_hides_behind_the_gpu_s():
    with labkit.simulated_gpu():
        x = torch.empty(8192, 8192, device="cuda")
        with labkit.stopwatch() as alone:
            x @ x
        with labkit.stopwatch() as beside:
            x @ x
            labkit.host_work(alone.seconds / 2)
    assert beside.ms == pytest.approx(alone.ms)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="use_gpu"), labkit.stopwatch():
        pass


def test_the_bottleneck_is_the_lane_that_works_most():
    with labkit.simulated_gpu():
        x = torch.empty(8192, 8192, device="cuda")
        with labkit.stopwatch(lanes=True) as computing:
            x @ x
        with labkit.stopwatch(lanes=True) as preparing:
            labkit.host_work(computing.seconds)
            x @ x
            labkit.host_work(computing.seconds * 2)
        with labkit.stopwatch() as unseen:
            x @ x
    assert computing.bottleneck() == "compute" and computing.busy()["compute"] == pytest.approx(1, abs=0.01)
    assert computing.busy()["host"] < 0.01  # it waits
    assert list(preparing.busy()) == ["host", "compute"] and preparing.bottleneck() == "host"
    assert preparing.busy() == pytest.approx({"host": 1, "compute": 1 / 3}, abs=0.01)
    assert unseen.busy() == {} and "torch.profiler" in unseen.bottleneck()
