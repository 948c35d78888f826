"""One simulated GPU after another, and modes that an interrupt or another program left on."""

import signal
import time

import pytest
import torch
from torch import overrides

import simgpu
from simgpu import interrupts
from simgpu.dispatch import stacks


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


@pytest.mark.filterwarnings("ignore::simgpu.IncompleteEstimateWarning")
def test_shapes_of_a_user_s_operator_are_asked_anew_on_each_gpu():
    rows = [3]

    library = torch.library.Library("asked_anew", "DEF")
    library.define("rows(Tensor x) -> Tensor")
    library.impl("rows", lambda x: x.new_empty(rows[0]), "Meta")
    for rows[0] in (3, 5):
        with simgpu.simulated_gpu("T4"):
            assert torch.ops.asked_anew.rows(torch.ones(2, device="cuda")).shape == (rows[0],)


def test_a_mode_that_came_back_late_is_taken_off_by_the_next_gpu():
    with simgpu.simulated_gpu("T4"):
        stale = overrides._get_current_function_mode_stack()[-1]
    overrides._push_mode(stale)
    try:
        with simgpu.simulated_gpu("T4"):
            assert stale not in overrides._get_current_function_mode_stack()
    finally:
        if stale in overrides._get_current_function_mode_stack():
            overrides._pop_mode()


def test_a_mode_that_an_interrupt_put_on_twice_is_left_for_good():
    mode = overrides.BaseTorchFunctionMode()
    before = stacks.functions()
    stacks.enter(mode)
    overrides._push_mode(mode)
    stacks.leave(mode)
    assert stacks.functions() == before


def test_an_owner_that_was_never_made_is_collected_in_silence():
    """As where an interrupt comes before the first line of its __init__."""
    simgpu.simulated_gpu.__new__(simgpu.simulated_gpu).__del__()


def test_where_no_mode_is_on_a_model_is_exported_as_ever(gpu):
    with stacks.none():
        assert torch.export.export(torch.nn.ReLU(), (torch.ones(2),)).graph is not None


@pytest.fixture
def heard():
    """Ctrl-C has Python's handler, also where a shell started the tests in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_that_came_too_early_comes_later():
    with pytest.raises(KeyboardInterrupt):
        if interrupts.raise_later(KeyboardInterrupt(), ()):
            while True:
                time.sleep(0.01)
