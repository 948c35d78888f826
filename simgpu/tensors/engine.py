"""What autograd does on CUDA and not under a dispatch mode.

Where two gradients meet, the engine adds the second into the first if nothing else holds the first
(torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). It refuses to under a dispatch mode and calls add.
This module tells when CUDA would have worked in place; `formulas.py`, what formulas do otherwise.
"""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.tensors import meta_kernels, numbering

_aten = torch.ops.aten
_ADD = _aten.add.Tensor


def in_its_thread() -> bool:
    """Whether autograd's engine runs an operator that on CUDA runs in the engine's own thread, which has a cuBLAS of
    its own: not under torch.autograd.set_multithreading_enabled(False) (torch/csrc/autograd/engine.cpp, execute)."""
    return torch._C._current_graph_task_id() != -1 and torch._C._is_multithreading_enabled()  # pyright: ignore[reportAttributeAccessIssue]


class _Count(TorchDispatchMode):
    """Notes how many references the first operand of the engine's own `add` has when nothing else holds it."""

    counts: tuple[int, int] | None = None

    @classmethod
    def _should_skip_dynamo(cls):
        """As that of DispatchMode: or PyTorch imports its compiler at the first operator, which takes seconds"""
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is _ADD and torch._C._current_graph_task_id() != -1:
            self.counts = references(args[0])
        return meta_kernels.run(operator, args, kwargs or {})


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """How many references PyTorch holds to a tensor and to its storage."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)  # pyright: ignore[reportAttributeAccessIssue]


@cache
def _unshared() -> tuple[int, int]:
    """What `references` gives for a tensor that only the engine holds, measured on this version of PyTorch."""
    with numbering.not_counted(), torch._C.DisableTorchFunction(), _Count() as counting:
        leaf = torch.ones(2, device="meta", requires_grad=True)
        doubled = leaf * 1
        (doubled * 2 + doubled * 3).sum().backward()  # a gradient given in Python has PyTorch import sympy
    assert counting.counts is not None, "the engine adds two gradients"
    return counting.counts


def prepare() -> None:
    """Measures the reference counts once, outside any simulated GPU."""
    _unshared()


def unshared_storage(tensor: torch.Tensor) -> bool:
    """Whether no other tensor lies in the memory of one that a formula of autograd gave to an operator."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == _unshared()[1]


def unshared(tensor: torch.Tensor) -> bool:
    """Whether nobody else holds a tensor that the engine, or a formula of autograd, gave to an operator."""
    return references(tensor) == _unshared()


def accumulates(operator, args) -> bool:
    """Whether this call, made in autograd's engine, can be its sum of two gradients, which CUDA makes in the first."""
    return operator is _ADD and not torch.is_grad_enabled() and _of_one_kind(*args[:2]) and unshared(args[0])


_transformed = False


def transformed() -> bool:
    """Whether the backward that runs is one of torch.func's, or of vmap. What it has are wrappers, which PyTorch does
    not work on in place on CUDA either."""
    return _transformed


def letting_go(run):
    """torch.autograd._engine_run_backward (`run` is PyTorch's own): after a failure its graph is freed at once.

    What a failed backward still had to do waits in the queue of its thread, tensors of the graph included, until
    somebody takes it from there and sees that it is of no use (torch/csrc/autograd/engine.cpp, thread_main). A GPU's
    thread does so at once. Here backward runs in the caller's own, which looks there in the next backward.
    """

    def run_backward(*args, **kwargs):
        global _transformed
        outer, _transformed = _transformed, torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return run(*args, **kwargs)
        except BaseException:
            if torch._C._current_graph_task_id() == -1:
                with (
                    numbering.not_counted(),
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
    """Whether two gradients that meet are of a kind that is summed in place."""
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.is_contiguous() or _aten.is_non_overlapping_and_dense.default(first)
