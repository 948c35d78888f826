"""A declared host: its factor on launches, operators and views, and how it is measured and shown."""

import pytest
import torch

import labkit
import simgpu
from simgpu import host_calibration
from simgpu.clock import rates


def issued(host):
    """Seconds of the host for ten additions and as many views."""
    with labkit.simulated_gpu("H100", host=host):
        x = torch.ones(4, 4, device="cuda")
        clock = simgpu.device.machine.current().clock
        before = clock.host
        for _ in range(10):
            x.add_(1)
            x.t()
        return clock.host - before


@pytest.mark.parametrize("factor", [0.5, 1, 3.7])
def test_the_host_s_constants_are_multiplied(factor):
    assert issued(factor) == pytest.approx(10 * factor * (rates.OPERATOR + rates.LAUNCH + rates.VIEW))


def test_the_device_is_as_fast_as_it_was():
    times = []
    for host in (1, 4):
        with labkit.simulated_gpu("H100", host=host):
            x = torch.ones(8192, 8192, device="cuda")
            with labkit.stopwatch() as timing:
                x @ x
                labkit.host_work(1e-3)  # in seconds: what somebody says that it takes
            times.append(timing.ms)
    assert times[0] == pytest.approx(times[1], rel=0.01)


@pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan"), "2", True, None])
def test_a_factor_is_a_number_above_0(factor):
    with pytest.raises(ValueError, match="wanted a number above 0"):
        labkit.simulated_gpu("H100", host=factor)


def test_a_time_says_which_host_it_is_of_where_that_is_not_the_clock_s():
    for host, said in ((1, "(simulated H100)"), (2.5, "(simulated H100, host × 2.5)")):
        with labkit.simulated_gpu("H100", host=host) as gpu:
            with labkit.stopwatch("step") as timing:
                torch.ones(3, device="cuda")
            assert str(timing).endswith(said) and gpu.host == host


def test_use_gpu_says_it(capsys):
    with labkit.simulated_gpu("H100"):
        pass
    labkit.use_gpu("H100", host=2, only_simulated=True)
    try:
        assert "a host that takes 2 times as long as the clock assumes" in capsys.readouterr().out
        assert labkit.gpu.current().host == 2
    finally:
        labkit.gpu.leave()


def test_the_reference_is_what_the_loop_s_operators_take(monkeypatch):
    taken = []
    monkeypatch.setattr(host_calibration, "_fastest", lambda step: taken.append(step) or 1.0)
    one = host_calibration.host_slowness()
    with labkit.simulated_gpu("H100"):
        assert labkit.this_host() == one  # the same operators, wherever it is asked
    monkeypatch.setattr(host_calibration, "_fastest", lambda step: 2.0)
    assert host_calibration.host_slowness() == 2 * one
    operators = 1 / one / rates.CPU_OPERATOR
    assert 5 * host_calibration.LAYERS < operators < 20 * host_calibration.LAYERS
    assert len(taken) == 2


def test_measuring_changes_nothing(monkeypatch):
    monkeypatch.setattr(host_calibration, "ENOUGH", 0.01)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert simgpu.host_slowness() > 0
        assert not torch.is_grad_enabled()
    assert torch.equal(before, torch.get_rng_state())
