"""Whatever interrupts the entry, a step or the exit, torch is as it was found, and the next program is exact."""

import functools
import gc
import os
import random
import signal
import sys
import threading
import time

import pytest
import torch
from torch import overrides
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import simgpu
from simgpu import interrupts, session
from simgpu.allocator.blocks import Block
from simgpu.device import machine
from simgpu.dispatch import stacks
from simgpu.errors import NotModelledError
from simgpu.interrupts import Deferred
from simgpu.ops import dispatcher

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
TIMES = int(os.environ.get("SIMGPU_INTERRUPTS", 50))


class Interrupted(KeyboardInterrupt):
    """What the timer raises, at any bytecode of the main thread where Ctrl-C may come."""


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
        dispatcher._holders,
        session._sessions,
        machine.current(),
    )


@pytest.fixture(autouse=True)
def small_heap():
    """What other tests have left is not looked through at each of many collections of garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def alarm():
    """A function that raises Interrupted after some seconds, once; with 0 it never does.

    A timer's signal sends Ctrl-C's, SIGINT, whose handler raises only while it is armed, so that a signal that comes
    late (a timer that was too slow to be stopped, or a test that failed) raises nowhere else.
    """
    armed = []

    def send(number, frame):
        if armed:
            signal.raise_signal(signal.SIGINT)

    def interrupt(number, frame):
        if armed:
            armed.clear()
            raise Interrupted

    def alarm(seconds):
        armed[:] = [seconds] if seconds else []
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, send), signal.signal(signal.SIGINT, interrupt)
    try:
        yield alarm
    finally:
        alarm(0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, before[1])


@pytest.fixture
def interrupted_in(alarm):
    """A function that runs `work()` and interrupts it after some seconds; whether it did. Other errors are raised."""

    def run(work, seconds):
        try:
            alarm(seconds)
            work()
            alarm(0)
        except Interrupted:
            return True
        finally:
            alarm(0)
        return False

    return run


def calm(alarm) -> None:
    """After an interrupt. PyTorch's own no_grad may be what was interrupted on its way out, on a real GPU too."""
    alarm(0)
    torch.set_grad_enabled(True)
    sys.last_traceback = None
    gc.collect()


def until_raised(error: type[Exception], work, seconds: float) -> None:
    """Does `work` again and again until SIGALRM's handler, which comes after some seconds, raises its `error`.

    Python drops what a handler raises inside the callback of a weak reference or a finalizer; then the timer is set
    once more.
    """
    while True:
        again = time.monotonic() + seconds + 1
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            while time.monotonic() < again:
                work()
        except error:
            return


def test_at_random_moments(alarm, interrupted_in):
    expected = program()
    found = state()
    started = time.perf_counter()
    program()
    whole = time.perf_counter() - started
    rng, interrupted = random.Random(1), 0
    for _ in range(TIMES):
        interrupted += interrupted_in(program, max(rng.uniform(0, 1.1 * whole), 1e-5))
        calm(alarm)
        assert state() == found
    assert interrupted
    assert program() == expected


def test_a_step_is_interrupted_and_the_gpu_goes_on(alarm, interrupted_in):
    """As in a notebook: a cell is interrupted, and the next one goes on with the same GPU, exactly."""
    rng, interrupted = random.Random(3), 0
    with simgpu.simulated_gpu("A100-80GB") as gpu:
        expected = events_of_a_step()
        started = time.perf_counter()
        step()
        whole = time.perf_counter() - started
        for _ in range(TIMES):
            interrupted += interrupted_in(step, rng.uniform(1e-5, whole))
            calm(alarm)
            torch._C._cuda_clearCublasWorkspaces()
            assert torch.cuda.memory_allocated() == 0
            assert events_of_a_step() == expected
            assert not gpu.unmodeled
    assert interrupted


def test_another_signal_does_not_cut_the_allocator_short():
    """Handlers of other signals than Ctrl-C's that raise wait as well."""
    rng = random.Random(4)

    def interrupt(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with simgpu.simulated_gpu("A100-80GB") as gpu:
            allocator = machine.on().allocator
            blocks: list[Block] = []

            def take_and_give():
                blocks[:] = [allocator.malloc(512)]
                allocator.free(blocks[0])

            for _ in range(TIMES):
                until_raised(Interrupted, take_and_give, rng.uniform(1e-4, 1e-3))
                block = blocks[-1] if blocks else None
                blocks.clear()
                if block is not None and block.allocated:
                    allocator.free(block)
                stats = allocator.stats()["allocation"]["all"]
                assert allocator.allocated == 512 * stats["current"] and stats["allocated"] > 0
            assert not gpu.unmodeled
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_handlers_of_other_signals_see_the_gpu_between_operators():
    """They may compute, as a handler that saves a model does; here with one that was set inside, and one before."""
    seen: list[bool | Exception] = []

    def handler(number, frame):
        try:
            seen.append(torch.ones(4, device="cuda").add(1).is_cuda)
        except NotModelledError as error:  # came between two operators of one call, and is told so
            seen.append("is not seen here" in str(error))

    def late(number, frame):
        seen.append(True)

    before = signal.signal(signal.SIGALRM, handler), signal.signal(signal.SIGUSR1, late)
    try:
        with simgpu.simulated_gpu("A100-80GB") as gpu:
            signal.signal(signal.SIGUSR1, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
            while len(seen) < TIMES:
                torch.ones(100, device="cuda") + 1
                signal.raise_signal(signal.SIGUSR1)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert all(seen), seen
            gc.collect()
            assert torch.cuda.memory_allocated() == 0
            assert not gpu.unmodeled
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGUSR1, before[1])


def test_a_timeout_by_a_signal_leaves_nothing():
    """The usual way to limit a call's time: SIGALRM, and a handler that raises."""
    rng = random.Random(6)

    def handler(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with simgpu.simulated_gpu("A100-80GB") as gpu:
            expected = events_of_a_step()
            for _ in range(TIMES):
                until_raised(TimeoutError, step, rng.uniform(1e-4, 2e-2))
                torch.set_grad_enabled(True)
                sys.last_traceback = None
                gc.collect()
                torch._C._cuda_clearCublasWorkspaces()
                assert gpu.unmodeled or (torch.cuda.memory_allocated(), events_of_a_step()) == (0, expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_just_after_pytorch_disables_the_mode_does_not_lose_it(monkeypatch):
    """torch.overrides.handle_torch_function, which Tensor.backward calls, removes the mode for the length of a call."""

    def handler(number, frame):
        raise TimeoutError

    def removed():
        mode = remove()
        signal.raise_signal(signal.SIGALRM)
        return mode

    remove, before = overrides._pop_torch_function_stack, signal.signal(signal.SIGALRM, handler)
    try:
        with simgpu.simulated_gpu("A100-80GB"):
            loss = torch.ones((), device="cuda", requires_grad=True)
            with monkeypatch.context() as patched, pytest.raises(TimeoutError):
                patched.setattr(overrides, "_pop_torch_function_stack", removed)
                loss.backward()
            loss.backward()
            assert torch.ones(1).cuda().is_cuda
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_interrupts_the_freeing_of_memory_is_not_lost(alarm):
    """Python drops what is raised in the callback of a weak reference: Ctrl-C comes once more then."""
    rng = random.Random(5)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with simgpu.simulated_gpu("A100-80GB"):
        for _ in range(TIMES):
            tensors = [torch.empty(1000, device="cuda") for _ in range(100)]
            with pytest.raises(KeyboardInterrupt):
                alarm(rng.uniform(1e-5, 1e-3))
                tensors.clear()
                while True:
                    time.sleep(0.01)  # it comes here at the latest
            alarm(0)
            del tensors
            assert torch.cuda.memory_allocated() == 0


def events_of_a_step() -> list[tuple[str, int]]:
    torch.cuda.empty_cache()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(clear_history=True)
    step()
    found = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return [(one["action"], one["size"]) for one in found if not one["action"].startswith("segment")]


def test_while_it_is_entered(alarm, interrupted_in):
    def enter():
        with simgpu.simulated_gpu("A100-80GB"):
            alarm(0)

    expected, found, rng = program(), state(), random.Random(2)
    for _ in range(TIMES):
        interrupted_in(enter, rng.uniform(1e-5, 0.02))
        calm(alarm)
        assert state() == found
    assert program() == expected


def test_a_signal_waits_and_is_then_handled(alarm):
    waited = False
    with pytest.raises(Interrupted), Deferred():
        alarm(60)
        signal.raise_signal(signal.SIGALRM)
        waited = True
    assert waited


def test_handlers_are_as_they_were(alarm):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with Deferred():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


def _out_of_time(number, frame, more=None):
    raise TimeoutError


class _Handler:
    def __call__(self, number, frame):
        raise TimeoutError

    def method(self, number, frame):
        raise TimeoutError


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no alarms")
@pytest.mark.parametrize(
    "handler",
    [_out_of_time, functools.partial(_out_of_time, more=1), _Handler(), _Handler().method],
    ids=["function", "partial", "object", "method"],
)
def test_the_signal_is_found_whatever_its_handler_is(handler):
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError) as caught:
            signal.raise_signal(signal.SIGALRM)
        assert interrupts._signal_of(caught.value) == signal.SIGALRM
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts._signal_of(caught.value) is None
