"""`use_gpu` and a `with simulated_gpu`, interrupted at each of their lines: the next call does what it says."""

import gc
import sys

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import labkit
from labkit import gpu
from simgpu import session

CUT = {gpu.use_gpu, gpu.leave, session.simulated_gpu.__enter__, session.simulated_gpu.__exit__}
CODES = {function.__code__ for function in CUT}


class Cut:
    """Inside the `with`, KeyboardInterrupt is raised before the line number `at` of those that `CUT` runs."""

    def __init__(self, at: int):
        self.left = at

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.called)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)

    def called(self, frame, event, argument):
        return self.line if frame.f_code in CODES else None

    def line(self, frame, event, argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line


@pytest.fixture(autouse=True)
def no_other(monkeypatch):
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    gc.collect()
    gc.freeze()  # `use_gpu` looks through all that lives
    yield
    gc.unfreeze()
    gpu.leave()


def each_line(work):
    """Interrupts `work()` at each of its lines, and gives each interrupt, with which the frames of `work` live."""
    at = 1
    while True:
        raised = None
        try:
            with Cut(at):
                work()
        except KeyboardInterrupt as error:
            raised = error
        if raised is None:
            break
        yield raised  # not where it is handled: up to Python 3.10 that keeps its traceback besides
        at += 1
    assert at > 5


def test_a_first_cell_that_was_interrupted_is_run_again(capsys):
    kept = []  # as IPython keeps the last exception, and with it what the interrupted frames hold

    def twice():
        labkit.use_gpu("A100-80GB")
        labkit.use_gpu("H100")

    for error in each_line(twice):
        kept[:] = [error]
        assert str(labkit.use_gpu("T4")) == "simulated T4"
        assert [one.machine.spec.key for one in session._sessions] == ["T4"]
        assert torch.ones(1, device="cuda").is_cuda
        gpu.leave()
        assert session._sessions == [] and not torch.cuda.is_available()
    assert "of a `with` around this" not in capsys.readouterr().out


def test_a_with_that_was_interrupted_leaves_nothing():
    def inside():
        with labkit.simulated_gpu("A100-80GB"):
            pass

    for error in each_line(inside):
        error.__traceback__ = None  # its frames have the GPU that `with` has not got yet, which is left with them
        assert session._sessions == [] and _get_current_function_mode_stack() == []
        assert not torch.cuda.is_available()
