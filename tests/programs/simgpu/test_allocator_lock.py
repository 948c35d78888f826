"""What Python runs in the middle of the allocator's work: garbage collection, observers, its stack's end. And forks."""

import gc
import os
import sys

import pytest
import torch

import simgpu
from simgpu.device import machine
from simgpu.errors import NotModelledError


class Cycle:
    """Garbage that only a collection frees, with a tensor of 1536 B."""

    def __init__(self):
        self.itself = self
        self.tensor = torch.empty(300, device="cuda")


class Emptying(Cycle):
    def __del__(self):
        self.tensor = None
        torch.cuda.empty_cache()


@pytest.fixture(params=[1, 2, 7])
def collected_often(request):
    before = gc.get_threshold()
    gc.set_threshold(request.param)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("kind", [Cycle, Emptying])
def test_garbage_may_be_tensors(collected_often, kind):
    with simgpu.simulated_gpu("A100-80GB") as gpu:
        for _ in range(100):
            kind()
            x = torch.empty(1000, device="cuda")
            y = x * 2
        del x, y
        gc.collect()
        assert torch.cuda.memory_allocated() == 0
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert not gpu.unmodeled


def test_what_is_asked_in_the_middle_waits_or_is_refused():
    """Here by the callback that gives the frames of an allocation, which the allocator calls at its work."""
    done = []

    def frames():
        if not done:
            done.append(True)
            allocator.free(first)
            done.append(first.allocated)
            with pytest.raises(NotModelledError, match="while its allocator was at work"):
                allocator.malloc(512)
        return []

    with simgpu.simulated_gpu("A100-80GB"):
        allocator = machine.on().allocator
        first = allocator.malloc(1000)
        allocator.history._frames = frames
        allocator.record_history()
        second = allocator.malloc(2000)
        assert done == [True, True] and not first.allocated and second.allocated
        assert allocator.allocated == 2048


def test_an_observer_of_out_of_memory_may_ask_anything():
    seen = []

    def observer(*_):
        seen.append(len(torch.cuda.memory._snapshot()["segments"]))
        kept.append(torch.empty(100, device="cuda"))

    def failing(*_):
        raise ZeroDivisionError

    kept: list[torch.Tensor] = []
    with simgpu.simulated_gpu("T4") as gpu:
        kept.append(torch.empty(100, device="cuda"))
        torch._C._cuda_attach_out_of_memory_observer(observer)  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**40, device="cuda")
        assert seen == [1] and torch.cuda.memory_allocated() == 1024
        torch._C._cuda_attach_out_of_memory_observer(failing)  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ZeroDivisionError):
            torch.empty(2**40, device="cuda")
        assert torch.cuda.memory_allocated() == 1536
        assert not gpu.unmodeled
        kept.clear()


def test_an_exception_from_elsewhere_is_told():
    """Such as a handler of another signal raises, or another thread in this one."""

    def frames():
        raise TimeoutError

    with simgpu.simulated_gpu("A100-80GB") as gpu:
        allocator = machine.on().allocator
        allocator.history._frames = frames
        allocator.record_history()
        with (
            pytest.warns(simgpu.IncompleteEstimateWarning, match="TimeoutError inside the allocator"),
            pytest.raises(TimeoutError),
        ):
            allocator.malloc(512)
        assert not gpu.unmodeled.lower_bound


def test_tensors_that_die_where_python_refuses_another_call():
    class Holder:
        tensor: torch.Tensor | None = None

    def deep(holder):
        try:
            return deep(holder)
        except RecursionError:
            holder.tensor = None
            raise

    with simgpu.simulated_gpu("A100-80GB") as gpu:
        for _ in range(10):
            holder = Holder()
            holder.tensor = torch.empty(1000, device="cuda")
            with pytest.raises(RecursionError):
                deep(holder)
        assert torch.cuda.memory_allocated() == 0
        assert not gpu.unmodeled


def test_the_end_of_pythons_stack_is_met_before_the_allocator_begins():
    def deep(allocator, kept):
        kept.append(allocator.malloc(512))
        allocator.free(kept.pop())
        deep(allocator, kept)

    with simgpu.simulated_gpu("A100-80GB") as gpu:
        for more in range(40):
            before = sys.getrecursionlimit()
            sys.setrecursionlimit(before + more)
            kept: list = []
            with pytest.raises(RecursionError):
                deep(machine.on().allocator, kept)
            sys.setrecursionlimit(before)
            while kept:
                machine.on().allocator.free(kept.pop())
        assert machine.on().allocator.allocated == 0
        assert not gpu.unmodeled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_process_has_no_cuda(used):
    """As PyTorch's, if CUDA was initialised before the fork."""
    with simgpu.simulated_gpu("A100-80GB"):
        kept = torch.empty(10, device="cuda") if used else None
        child = os.fork()
        if child == 0:
            status = 2
            try:
                torch.empty(10, device="cuda")
                status = 0
            except RuntimeError as error:
                status = 1 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 3
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (1 if used else 0)
        assert torch.cuda.memory_allocated() == (512 if used else 0)
        del kept
