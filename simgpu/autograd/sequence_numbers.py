"""Gives autograd nodes CUDA's sequence numbers, by which the engine orders them.

Of the nodes that are ready, the engine runs the one with the highest number first. A node's number is the count of
nodes that its thread had made before (torch/csrc/autograd/engine.cpp, CompareNodeTaskTime; node.h, sequence_nr).
Backward of CUDA tensors runs in a thread of the device. So nodes that backward makes for a second derivative
(create_graph=True) are counted there, and the program's forward in the program's thread. Here both run in the program's
thread with one count. A backward that meets nodes of both kinds, as with a gradient penalty, has CUDA's order only if
the nodes have CUDA's numbers.
"""

import threading
from bisect import bisect_right
from contextlib import contextmanager
from functools import wraps

import torch
from torch.autograd.graph import GradientEdge

from simgpu.storage.storage_map import of, on_gpu

_counted = torch._C._autograd._get_sequence_nr  # pyright: ignore[reportAttributeAccessIssue]
_OURS = 1 << 40  # added to numbers from this module; more nodes than any program makes


class _Counts(threading.local):
    """The counts [start, end) of one thread that were not the program's, and whether the last backward made a graph.

    In that case the next backward may meet nodes of both kinds. Otherwise nodes keep their numbers, because accessing a
    node's `next_functions` changes the order in which PyTorch frees them.
    """

    def __init__(self):
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.skipped: list[int] = [0]  # how much of the count was not the program's before each range, and now
        self.of_backward: list[int] = [0]  # how much of that was backward's
        self.since: int | None = None  # the count when the current backward began
        self.again = False

    def skip(self, start: int, end: int, backward: bool) -> None:
        """Marks the counts from `start` to `end` as backward's, or as not existing on CUDA."""
        if end > start:
            self.starts.append(start)
            self.ends.append(end)
            self.skipped.append(self.skipped[-1] + end - start)
            self.of_backward.append(self.of_backward[-1] + backward * (end - start))

    def on_cuda(self, number: int) -> int:
        """Returns the number on CUDA of a node whose number here is `number`."""
        if self.since is not None and number >= self.since:
            return number - self.since + self.of_backward[-1]
        last = bisect_right(self.starts, number) - 1
        if last >= 0 and number < self.ends[last]:
            return number - self.starts[last] + self.of_backward[last]
        return number - self.skipped[last + 1]


_counts = _Counts()


def forget() -> None:
    """Resets the state for a new GPU, so that no graph of an earlier backward is assumed."""
    _counts.again = False


@contextmanager
def not_counted():
    """Excludes nodes that the simulated GPU makes for its own use, inside the `with`."""
    start = _counted()
    try:
        yield
    finally:
        _counts.skip(start, _counted(), backward=False)


def _of_gpu(root: torch.Tensor | GradientEdge) -> bool:
    """Returns whether a backward from this root, a tensor or a graph edge, begins on the simulated GPU."""
    if isinstance(root, GradientEdge):
        return any(made.device.type == "meta" for made in root.node._input_metadata)
    return on_gpu(root)


def _made_here(roots, gradients) -> tuple:
    """Returns the initial gradients of a backward, with simulated tensors for edges.

    If PyTorch makes the initial 1 for an edge itself, it reads the device from the graph (torch/autograd/__init__.py,
    _make_grads), and the graph of simulated tensors reports meta.
    """
    given = [
        torch.ones_like(one, device="cuda") if isinstance(root, GradientEdge) and _is_bare(one) else one
        for root, one in zip(roots, gradients, strict=True)
    ]
    return tuple(given)


def _is_bare(gradient: torch.Tensor | None) -> bool:
    """Returns whether a gradient has a shape but no memory."""
    return gradient is not None and gradient.is_meta and of(gradient) is None


def _renumber(roots) -> None:
    """Gives CUDA's numbers to the nodes that a backward of these roots can reach."""
    nodes = (root.node if isinstance(root, GradientEdge) else root.grad_fn for root in roots)
    ahead: list = [node for node in nodes if node is not None]
    while ahead:
        node = ahead.pop()
        number = node._sequence_nr()
        if number < _OURS:  # otherwise it and those behind it have their numbers, or it adds to a leaf's gradient
            node._set_sequence_nr(_OURS + _counts.on_cuda(number))
            ahead += [one for one, _ in node.next_functions if one is not None]


def counted_apart(run):
    """Wraps torch.autograd._engine_run_backward (`run`), so that nodes that it makes are counted separately.

    This applies to tensors of the simulated GPU.
    """

    @wraps(run)
    def run_backward(roots, gradients, *args, **kwargs):
        if not any(map(_of_gpu, roots)):
            return run(roots, gradients, *args, **kwargs)
        gradients = _made_here(roots, gradients)
        if _counts.again:
            _renumber(roots)
        create_graph = kwargs["create_graph"] if "create_graph" in kwargs else args[1]
        _counts.again = bool(create_graph)
        if _counts.since is not None:  # inside an outer backward, whose thread it runs in
            return run(roots, gradients, *args, **kwargs)
        _counts.since = start = _counted()
        try:
            return run(roots, gradients, *args, **kwargs)
        finally:
            _counts.since = None
            _counts.skip(start, _counted(), backward=True)

    return run_backward
