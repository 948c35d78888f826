"""Partitions a model with torch.compile's AOTAutograd into two graphs that run on the GPU, also on a simulated one.

torch.compile works in three steps. Dynamo reads the Python code, AOTAutograd traces forward and backward into one graph
and partitions it, and a backend (inductor) turns each half into kernels. The partition decides what is saved for
backward. A simulated GPU cannot run inductor's kernels, and Dynamo does not trace code that runs on it. But the
partition depends only on shapes, so this module computes it with tensors on the CPU and then runs the two halves
operator by operator.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.utils._python_dispatch import _disable_current_modes

from labkit import plots
from labkit.gpu import current


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Restores plain PyTorch for tensors on the CPU inside the ``with``, so that torch.compile and tracers work on
    them.

    While it is active, the modes of a simulated GPU are disabled, and tensors on that GPU must not be used. On a real
    GPU it only hides a warning of the compiler. Raises RuntimeError if no GPU is in use.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Guards may run slower")  # a warning of the compiler on Python 3.13.0
        if current().simulated:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            if "torch._dynamo" in sys.modules:  # a simulated GPU has set it to run everything eagerly
                stack.enter_context(torch.compiler.set_stance("default"))
        yield


class Partitioned(nn.Module):
    """Runs a model as its two graphs, with the model's parameters; call it in the model's place.

    `forward_graph` returns the model's output, followed by what is saved for backward. `backward_graph` takes what was
    saved and the output's gradient. Both run operator by operator, which no backend of torch.compile does. So the saved
    tensors are those of the partition, but temporaries and times are not inductor's.
    """

    def __init__(self, model: nn.Module, forward_graph: GraphModule, backward_graph: GraphModule):
        super().__init__()
        self.model = model
        self.forward_graph, self.backward_graph = forward_graph, backward_graph

    def forward(self, *inputs: Tensor) -> Tensor:
        return _Halves.apply(self.forward_graph, self.backward_graph, *self.model.parameters(), *inputs)

    @property
    def saved(self) -> tuple[str, ...]:
        """Returns the names of the tensors in the graph that are saved for backward."""
        outputs = next(node for node in self.forward_graph.graph.nodes if node.op == "output").args[0]
        return tuple(node.name for node in outputs[1:])

    @property
    def operators(self) -> dict[str, bool]:
        """Returns the operators of the forward graph in order, with whether the result of each is saved for backward.

        Views are excluded, because they allocate nothing. A result counts as saved if a view of it is saved.
        """
        nodes = list(self.forward_graph.graph.nodes)
        saved = {_base(node) for node in nodes[-1].args[0][1:]}
        called = [node for node in nodes if node.op == "call_function" and _base(node) is node]
        return {node.name: node in saved for node in called}


def _base(node):
    """Returns the node that a view is based on, or the node itself if it is not a view."""
    while node.op == "call_function" and getattr(node.target, "is_view", False):
        node = node.args[0]
    return node


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, forward_graph, backward_graph, *tensors):
        output, *saved = forward_graph(*tensors)
        ctx.backward_graph = backward_graph
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx, gradient):
        arguments = [*ctx.saved_tensors, gradient]
        ctx.maybe_clear_saved_tensors()  # as AOTAutograd does: each tensor is freed once the graph has used it
        return (None, None, *Interpreter(ctx.backward_graph).boxed_run(arguments))


def partition(model: nn.Module, *inputs: Tensor, cut: Callable, decompositions: dict | None = None) -> Partitioned:
    """Traces a model on the CPU with AOTAutograd and partitions its graph into two that run on the GPU.

    Nothing is computed. `inputs` are the model's positional arguments, tensors on the CPU, and the graphs are valid for
    their shapes only. `cut` is a partitioner of `functorch.compile`: `default_partition` saves what autograd saves, and
    `min_cut_rematerialization_partition`, inductor's own, looks for the fewest bytes. `decompositions` decomposes
    operators first (inductor's are `torch._inductor.decomposition.select_decomp_table()`). Raises ValueError if the
    model has buffers or more than one output, or if a tensor is not on the CPU.
    """
    # imported here, because the import takes a second
    from torch._functorch.aot_autograd import aot_export_joint_simple

    if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers(), *inputs)):
        raise ValueError("wanted a model and inputs on the CPU; move the result to the GPU")
    if next(model.buffers(), None) is not None:
        raise ValueError("wanted a model without buffers: the graphs take parameters and inputs only")
    names = [name for name, _ in model.named_parameters()]

    def outputs(*tensors):
        parameters = dict(zip(names, tensors[: len(names)], strict=True))
        output = torch.func.functional_call(model, parameters, tensors[len(names) :])
        if not isinstance(output, Tensor):
            raise ValueError(f"wanted a model with one tensor as its output, it gave a {type(output).__name__}")
        return (output,)

    tensors = [*model.parameters(), *inputs]
    with plain_torch():
        joint = aot_export_joint_simple(outputs, tuple(tensors), trace_joint=True, decompositions=decompositions or {})
        halves = cut(joint, None, num_fwd_outputs=1)
    for half in halves:
        for node in half.graph.nodes:
            node.meta.clear()  # the tracer's own tensors, which Ledger would list as alive
            if "device" in node.kwargs:  # a tensor made in the graph, on the device of the trace
                node.update_kwarg("device", torch.device("cuda"))
        half.recompile()
    return Partitioned(model, *halves)


def plot_cuts(rows: Mapping[str, Mapping[str, bool]], title: str) -> Figure:
    """Rows of operators, those filled whose results are saved for backward: ``{name: {operator: saved}}``.

    A row is what :attr:`Partitioned.operators` says.
    """
    said = [f"{name}: {', '.join(one for one in row if row[one]) or 'none'}" for name, row in rows.items()]
    figure, axes = plots.new(title, f"Saved are, {'; '.join(said)}.", height=1.0 + 0.75 * len(rows))
    for y, row in enumerate(rows.values()):
        for x, (operator, saved) in enumerate(row.items()):
            fill = plots.colours(["activations"])["activations"][0] if saved else "white"
            axes.add_patch(
                Rectangle(
                    (x + 0.04, y - 0.22),
                    0.92,
                    0.44,
                    fc=fill,
                    ec=plots.palette.dark if saved else plots.palette.grey,
                    lw=1,
                )
            )
            axes.text(x + 0.5, y, operator, ha="center", va="center", fontsize=6, color=plots.palette.dark)
            axes.plot([x - 0.04, x + 0.04], [y, y], color=plots.palette.grey, lw=1)
    axes.set(xlim=(-0.2, max(map(len, rows.values())) + 0.2), ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
