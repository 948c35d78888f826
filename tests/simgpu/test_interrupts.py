"""Whatever interrupts the entry, a step or the exit, torch is as it was found, and the next program is exact."""

import gc
import random
import signal
import sys
import threading
import time
import warnings

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import simgpu
from simgpu import machine, session
from simgpu.interrupts import Deferred
from simgpu.modes import stacks
from simgpu.tensors import registry

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
TIMES = 120


class Interrupted(BaseException):
    """What the timer raises, at any bytecode of the main thread."""


def step():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()


def program() -> tuple[int, int, int]:
    with simgpu.simulated_gpu("A100-80GB"):
        step()
        stats = torch.cuda.memory_stats()
        return stats["allocated_bytes.all.peak"], stats["allocation.all.allocated"], torch.cuda.memory_reserved()


def state() -> tuple:
    """What a simulated GPU changes, as far as it is quick to ask.

    PyTorch may put a function mode back late (`stacks.drop_stale`), one that lets everything through.
    """
    stacks.drop_stale()
    return (
        torch.cuda.is_available(),
        torch.Tensor.record_stream,
        torch.cuda.Stream,
        torch._C._cuda_getDeviceCount if hasattr(torch._C, "_cuda_getDeviceCount") else None,
        threading.Thread.start,
        _get_current_function_mode_stack(),
        _get_current_dispatch_mode_stack(),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutogradMeta"),
        registry._holders,
        session._sessions,
        machine.current(),
    )


@pytest.fixture
def alarm():
    """A function that raises Interrupted after some seconds, unless it is called with 0 before."""

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def calm(alarm) -> None:
    """After an interrupt. PyTorch's own no_grad may be what was interrupted on its way out, on a real GPU too."""
    alarm(0)
    torch.set_grad_enabled(True)
    sys.last_traceback = None
    gc.collect()


def test_at_random_moments(alarm):
    expected = program()
    found = state()
    started = time.perf_counter()
    program()
    whole = time.perf_counter() - started
    rng, interrupted = random.Random(1), 0
    for _ in range(TIMES):
        try:
            alarm(max(rng.uniform(0, 1.1 * whole), 1e-5))
            program()
            alarm(0)
        except Interrupted:
            interrupted += 1
        calm(alarm)
        assert state() == found
    assert interrupted
    assert program() == expected


def test_a_step_is_interrupted_and_the_gpu_goes_on(alarm):
    """As in a notebook: a cell is interrupted, and the next one goes on with the same GPU."""
    rng, told, whole = random.Random(3), 0, 0.05
    with simgpu.simulated_gpu("A100-80GB"):
        expected = events_of_a_step()
    for _ in range(TIMES):
        with warnings.catch_warnings(record=True) as caught, simgpu.simulated_gpu("A100-80GB") as gpu:
            warnings.simplefilter("always")
            started = time.perf_counter()
            try:
                alarm(rng.uniform(1e-4, whole))
                step()
            except Interrupted:
                pass
            calm(alarm)
            whole = min(whole, 2 * (time.perf_counter() - started)) or 0.01
            if gpu.left_out:
                told += 1
                assert any("inside the allocator" in str(one.message) for one in caught)
            else:
                assert events_of_a_step() == expected
    assert told < TIMES // 2


def events_of_a_step() -> list[tuple[str, int]]:
    torch.cuda.empty_cache()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(clear_history=True)
    step()
    found = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return [(one["action"], one["size"]) for one in found if not one["action"].startswith("segment")]


def test_while_it_is_entered(alarm):
    expected, found, rng = program(), state(), random.Random(2)
    for _ in range(TIMES):
        try:
            alarm(rng.uniform(1e-5, 0.02))
            with simgpu.simulated_gpu("A100-80GB"):
                alarm(0)
        except Interrupted:
            pass
        calm(alarm)
        assert state() == found
    assert program() == expected


def test_a_signal_waits_and_is_then_handled(alarm):
    alarm(0.01)
    with pytest.raises(Interrupted), Deferred():
        time.sleep(0.05)
        slept = True
    assert slept


def test_handlers_are_as_they_were(alarm):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with Deferred():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before
