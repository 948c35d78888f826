"""Simulated GPUs entered and left in any order, with PyTorch's own contexts and threads: torch is as it was found.

Some programs here. SIMGPU_INTERLEAVINGS=20000 in the environment asks for as many.
"""

import contextlib
import os
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _device
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import simgpu
from simgpu import session
from simgpu.device import machine
from simgpu.ops import dispatcher
from simgpu.storage import storage_map
from tests.unit.simgpu.states import assert_same, state

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")  # autocast("cuda") outside any GPU
PROGRAMS = int(os.environ.get("SIMGPU_INTERLEAVINGS", "100"))
GPUS = ("A100-80GB", "H100", "T4")
AROUND = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of the GPU": lambda: torch.autocast("cuda", torch.bfloat16),
    "mode": BaseTorchFunctionMode,
}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(GPUS)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("around"), st.sampled_from(sorted(AROUND))),
        st.tuples(st.just("out"), st.just(None)),
        st.tuples(
            st.just("use"), st.sampled_from(("step", "thread", "keep", "another thread's GPU", "default device"))
        ),
    ),
    min_size=2,
    max_size=10,
)


def quick() -> tuple:
    """What else is found out of torch in no time."""
    return (
        _get_current_function_mode_stack(),
        _get_current_dispatch_mode_stack(),
        _device.CURRENT_DEVICE,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_enabled("cpu"),
        torch.cuda.is_available(),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutogradMeta"),
        dispatcher._holders,
        session._sessions,
        machine.current(),
    )


class Program:
    """The simulated GPUs that are on, the contexts of PyTorch's that are entered, and what the program keeps."""

    def __init__(self):
        self.gpus: list[simgpu.simulated_gpu] = []
        self.contexts = contextlib.ExitStack()
        self.devices = 0
        self.kept: list[torch.Tensor] = []

    def enter(self, name):
        gpu = simgpu.simulated_gpu(name)
        gpu.__enter__()
        self.gpus.append(gpu)
        assert machine.on().spec.key == name

    def leave(self, number, *error):
        if self.gpus:
            self.gpus.pop(number % len(self.gpus)).__exit__(*error or (None, None, None))

    def fail(self, number):
        error = ZeroDivisionError()
        self.leave(number, ZeroDivisionError, error, error.__traceback__)

    def around(self, name):
        self.contexts.enter_context(AROUND[name]())
        self.devices += name == "device"

    def out(self, _):
        self.contexts.close()

    def use(self, how):
        if machine.current() is None or not machine.on().active:
            return
        if how == "default device":
            if not self.devices:  # inside a `with torch.device(...)` PyTorch puts the new default in that one's place
                torch.set_default_device("cuda")
        elif how == "keep":
            self.kept.append(torch.empty(100, device="cuda"))
        else:
            action = another_gpu if how == "another thread's GPU" else step
            if how == "step":
                action()
            else:
                in_thread(action)


def clean() -> None:
    """Takes away what a program that failed has left, so that the next does not fail for it."""
    torch.set_default_device(None)
    while _get_current_function_mode_stack():
        torch.overrides._pop_mode()


def step():
    before = torch.cuda.memory_allocated()
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        (weight * 2).sum().backward()
    assert weight.grad is not None and weight.grad.is_cuda
    assert torch.cuda.memory_allocated() == before + 2 * 512


def another_gpu():
    with pytest.raises(RuntimeError, match="of another thread is on"):
        simgpu.simulated_gpu("V100-16GB").__enter__()


def in_thread(action):
    ended = []

    def run():
        try:
            ended.append(action())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [None]


@pytest.fixture(scope="module", autouse=True)
def warmed_up():
    """Lets PyTorch import what it imports lazily, which is no change of ours."""
    with simgpu.simulated_gpu():
        step()


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(ACTIONS)
def test_torch_is_as_found(actions):
    clean()
    before, quickly = state(), quick()
    program = Program()
    try:
        for action, argument in actions:
            getattr(program, action)(argument)
    finally:
        while program.gpus:
            program.leave(-1)
        program.contexts.close()
        if program.devices:
            torch.set_default_device(None)  # a `with torch.device(...)` puts back the "cuda" that it found
    assert quick() == quickly
    assert_same(before, state())
    assert all(one.device.type == "meta" for one in program.kept)
    del program
    assert not [one for one in storage_map._entries.values() if one.machine.active]
