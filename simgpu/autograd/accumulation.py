"""Finds out what autograd's engine does on CUDA and not under a dispatch mode.

Where two gradients meet, the engine adds the second into the first if nothing else holds the first
(torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). Under a dispatch mode it calls add out of place. This
module finds out when CUDA would have worked in place, and `formulas.py` what formulas do differently.
"""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.autograd import sequence_numbers
from simgpu.shapes import meta_kernels

_aten = torch.ops.aten
_ADD = _aten.add.Tensor


def in_its_thread() -> bool:
    """Returns whether the engine runs an operator that on CUDA runs in the engine's own thread, with its own cuBLAS
    handle.

    That is not so under torch.autograd.set_multithreading_enabled(False) (torch/csrc/autograd/engine.cpp, execute).
    """
    return torch._C._current_graph_task_id() != -1 and torch._C._is_multithreading_enabled()  # pyright: ignore[reportAttributeAccessIssue]


class _Count(TorchDispatchMode):
    """Records the references to the first operand of the engine's own `add` when nothing else holds it."""

    counts: tuple[int, int] | None = None

    @classmethod
    def _should_skip_dynamo(cls):
        """Returns False, as DispatchMode's does, or PyTorch would import its compiler at the first operator, for
        seconds.
        """
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is _ADD and torch._C._current_graph_task_id() != -1:
            self.counts = references(args[0])
        return meta_kernels.run(operator, args, kwargs or {})


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the numbers of references that PyTorch holds to a tensor and to its storage."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore[reportAttributeAccessIssue]


@cache
def _unshared() -> tuple[int, int]:
    """Returns the result of `references` for a tensor that only the engine holds, measured on this version of
    PyTorch.
    """
    with sequence_numbers.not_counted(), torch._C.DisableTorchFunction(), _Count() as counting:
        leaf = torch.ones(2, device="meta", requires_grad=True)
        doubled = leaf * 1
        (doubled * 2 + doubled * 3).sum().backward()  # a gradient passed from Python makes PyTorch import sympy
    assert counting.counts is not None, "the engine adds two gradients"
    return counting.counts


def prepare() -> None:
    """Measures the reference counts once, outside any simulated GPU."""
    _unshared()


def unshared_storage(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor that an autograd formula passed to an operator shares its storage with no other
    tensor.
    """
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == _unshared()[1]


def unshared(tensor: torch.Tensor) -> bool:
    """Returns whether nothing else holds a tensor that the engine, or an autograd formula, passed to an operator."""
    return references(tensor) == _unshared()


def accumulates(operator, args) -> bool:
    """Returns whether a call from the engine can be its sum of two gradients, which CUDA computes in the first."""
    return operator is _ADD and not torch.is_grad_enabled() and _of_one_kind(*args[:2]) and unshared(args[0])


_transformed = False


def transformed() -> bool:
    """Returns whether the current backward is one of torch.func's, or of vmap.

    Its tensors are wrappers, which PyTorch does not update in place on CUDA either.
    """
    return _transformed


def letting_go(run):
    """Wraps torch.autograd._engine_run_backward (`run`), so that the graph is freed at once after a failure.

    The remaining work of a failed backward, with tensors of the graph, waits in its thread's queue until the thread
    takes it and finds that it is obsolete (torch/csrc/autograd/engine.cpp, thread_main). A GPU's thread does so at
    once. Here backward runs in the caller's own thread, which would do so only in the next backward.
    """

    def run_backward(*args, **kwargs):
        global _transformed
        outer, _transformed = _transformed, torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return run(*args, **kwargs)
        except BaseException:
            if torch._C._current_graph_task_id() == -1:
                with (
                    sequence_numbers.not_counted(),
                    torch._C.DisableTorchFunction(),
                    torch.inference_mode(False),
                    torch.enable_grad(),
                ):
                    one = torch.ones((), device="cpu")
                    run((one.requires_grad_() * 1,), (one.detach(),), False, False, (), accumulate_grad=True)
            raise
        finally:
            _transformed = outer

    return run_backward


def _of_one_kind(first, second) -> bool:
    """Returns whether two gradients that meet can be summed in place."""
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.is_contiguous() or _aten.is_non_overlapping_and_dense.default(first)
