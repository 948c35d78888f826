"""What autograd does on CUDA and not under a dispatch mode.

Where two gradients meet, the engine adds the second into the first if nothing else holds the first
(torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). It refuses to under a dispatch mode and calls add.
Some formulas (torch/csrc/autograd/FunctionsManual.cpp and others, areAnyTensorSubclassLike) write into a tensor that
they have just made, and under a dispatch mode make another. This module tells when CUDA would have worked in place.
"""

from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_ADD = _aten.add.Tensor
# Formulas scatter a gradient into zeros by these: index_select's, gather's, and those of max, sort, topk and the like.
_INTO_ZEROS = {_aten.index_add.default, _aten.scatter_add.default, _aten.scatter.src}
# Nodes of the graph whose formula goes on in the tensor that it has made, and by which operators.
_GOES_ON = {"BinaryCrossEntropyWithLogitsBackward0": {_aten.sub.Tensor, _aten.mul.Tensor}}
_GOING_ON = set().union(*_GOES_ON.values())


class _Count(TorchDispatchMode):
    """Notes how many references the first operand of the engine's own `add` has when nothing else holds it."""

    counts = None

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is _ADD and torch._C._current_graph_task_id() != -1:
            self.counts = references(args[0])
        return operator(*args, **(kwargs or {}))


def references(tensor: torch.Tensor) -> tuple[int, int]:
    """How many references PyTorch holds to a tensor and to its storage."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


@cache
def _unshared() -> tuple[int, int]:
    """What `references` gives for a tensor that only the engine holds, measured on this version of PyTorch."""
    with torch._C.DisableTorchFunction(), _Count() as counting:
        leaf = torch.ones(2, device="meta", requires_grad=True)
        doubled = leaf * 1
        (doubled * 2 + doubled * 3).backward(torch.ones(2, device="meta"))
    return counting.counts


def prepare() -> None:
    """Measures the reference counts once, outside any simulated GPU."""
    _unshared()


def done_in_place(operator, args) -> bool:
    """Whether this call, made by autograd's engine, is one that CUDA does in its first operand."""
    if operator is _ADD and _accumulates(*args[:2]):
        return references(args[0]) == _unshared()
    if operator in _INTO_ZEROS or (operator is _aten.index_put.default and args[3:4] == (True,)):
        return references(args[0])[1] == _unshared()[1]
    if operator not in _GOING_ON or references(args[0]) != _unshared():
        return False
    # Asked last: a node that Python has seen lets go of what it leads to in another order.
    node = torch._C._current_autograd_node()
    return node is not None and operator in _GOES_ON.get(node.name(), ())


def letting_go(run):
    """torch.autograd._engine_run_backward, of which `run` is PyTorch's: what it fails at is let go of at once.

    What a failed backward still had to do waits in the queue of its thread, tensors of the graph included, until
    somebody takes it from there and sees that it is of no use (torch/csrc/autograd/engine.cpp, thread_main). A GPU's
    thread does so at once. Here backward runs in the caller's own, which looks there in the next backward.
    """

    def run_backward(*args, **kwargs):
        try:
            return run(*args, **kwargs)
        except BaseException:
            if torch._C._current_graph_task_id() == -1:
                with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.enable_grad():
                    one = torch.ones((), device="cpu")
                    run((one.requires_grad_() * 1,), (one.detach(),), False, False, (), accumulate_grad=True)
            raise

    return run_backward


def _accumulates(first, second) -> bool:
    """Whether two gradients that meet are of a kind that is summed in place."""
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.is_contiguous() or _aten.is_non_overlapping_and_dense.default(first)
