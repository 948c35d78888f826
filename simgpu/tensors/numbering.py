"""The numbers by which autograd's engine orders nodes: a thread counts its own, and CUDA's backward has a thread.

Of the nodes that are ready the engine runs the one with the highest number first, and a node's number is how many the
thread that made it had made before (torch/csrc/autograd/engine.cpp, CompareNodeTaskTime; node.h, sequence_nr). Backward
of CUDA tensors runs in a thread of the device: what backward itself makes, where it is to be differentiated again
(create_graph=True), is counted there, and the program's forward in the program's thread. Here both run in the
program's thread, under one count. Where a backward meets nodes of both kinds, as with a gradient penalty, it comes in
the order of CUDA only if they have CUDA's numbers.
"""

import threading
from bisect import bisect_right
from contextlib import contextmanager
from functools import wraps

import torch
from torch.autograd.graph import GradientEdge

from simgpu.tensors.residence import of, on_gpu

_counted = torch._C._autograd._get_sequence_nr  # pyright: ignore[reportAttributeAccessIssue]
_OURS = 1 << 40  # added to a number that this module gave: more nodes than any program makes


class _Counts(threading.local):
    """Of one thread: the counts [start, end) that were not the program's, and whether the last backward made a graph.

    Then the next one may meet nodes of both kinds. Others keep their numbers: that a node has been asked for the nodes
    behind it changes the order in which PyTorch frees them.
    """

    def __init__(self):
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.skipped: list[int] = [0]  # how much of the count had not been the program's before each, and now
        self.of_backward: list[int] = [0]  # how much of that had been backward's
        self.since: int | None = None  # where the count was when the backward that now runs began
        self.again = False

    def skip(self, start: int, end: int, backward: bool) -> None:
        """What was counted from `start` to `end` is backward's, or else nobody's on CUDA."""
        if end > start:
            self.starts.append(start)
            self.ends.append(end)
            self.skipped.append(self.skipped[-1] + end - start)
            self.of_backward.append(self.of_backward[-1] + backward * (end - start))

    def on_cuda(self, number: int) -> int:
        """The number that a node has on CUDA, whose number here is `number`."""
        if self.since is not None and number >= self.since:
            return number - self.since + self.of_backward[-1]
        last = bisect_right(self.starts, number) - 1
        if last >= 0 and number < self.ends[last]:
            return number - self.starts[last] + self.of_backward[last]
        return number - self.skipped[last + 1]


_counts = _Counts()


def forget() -> None:
    """For a GPU that comes on: no backward of an earlier one made a graph that it may meet."""
    _counts.again = False


@contextmanager
def not_counted():
    """What the simulated GPU makes here for itself alone."""
    start = _counted()
    try:
        yield
    finally:
        _counts.skip(start, _counted(), backward=False)


def _of_gpu(root: torch.Tensor | GradientEdge) -> bool:
    """Whether a backward begins on the simulated GPU, at a tensor or at an edge of autograd's graph."""
    if isinstance(root, GradientEdge):
        return any(made.device.type == "meta" for made in root.node._input_metadata)
    return on_gpu(root)


def _made_here(roots, gradients) -> tuple:
    """The gradients with which a backward begins: where PyTorch made the 1 of an edge's number itself, it asked the
    graph for the device (torch/autograd/__init__.py, _make_grads), and the graph of simulated tensors says meta."""
    given = [
        torch.ones_like(one, device="cuda") if isinstance(root, GradientEdge) and _is_bare(one) else one
        for root, one in zip(roots, gradients, strict=True)
    ]
    return tuple(given)


def _is_bare(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient has a shape, and no memory anywhere."""
    return gradient is not None and gradient.is_meta and of(gradient) is None


def _renumber(roots) -> None:
    """Gives CUDA's numbers to the nodes that a backward of these roots can reach."""
    nodes = (root.node if isinstance(root, GradientEdge) else root.grad_fn for root in roots)
    ahead: list = [node for node in nodes if node is not None]
    while ahead:
        node = ahead.pop()
        number = node._sequence_nr()
        if number < _OURS:  # else it has its number, and so have those behind it; or it adds to a leaf's gradient
            node._set_sequence_nr(_OURS + _counts.on_cuda(number))
            ahead += [one for one, _ in node.next_functions if one is not None]


def counted_apart(run):
    """torch.autograd._engine_run_backward (`run` is PyTorch's own): of tensors of the simulated GPU, what it makes is
    counted apart from what the program makes."""

    @wraps(run)
    def run_backward(roots, gradients, *args, **kwargs):
        if not any(map(_of_gpu, roots)):
            return run(roots, gradients, *args, **kwargs)
        gradients = _made_here(roots, gradients)
        if _counts.again:
            _renumber(roots)
        create_graph = kwargs["create_graph"] if "create_graph" in kwargs else args[1]
        _counts.again = bool(create_graph)
        if _counts.since is not None:  # within another backward, whose thread it runs in
            return run(roots, gradients, *args, **kwargs)
        _counts.since = start = _counted()
        try:
            return run(roots, gradients, *args, **kwargs)
        finally:
            _counts.since = None
            _counts.skip(start, _counted(), backward=True)

    return run_backward
