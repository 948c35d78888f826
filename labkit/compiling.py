"""What torch.compile's AOTAutograd makes of a model, as two graphs that run on the GPU, a simulated one included.

torch.compile does its work in three parts: Dynamo reads the Python code, AOTAutograd traces forward and backward into
one graph and cuts it in two, and a backend, inductor, turns each half into kernels. The cut decides what is saved for
backward. A simulated GPU cannot run inductor's kernels, and Dynamo leaves alone whatever runs under it. But the cut
needs shapes only: it is made here with tensors of the CPU, and the two halves are then run operator by operator.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.utils._python_dispatch import _disable_current_modes

from labkit.gpu import current


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Inside it tensors of the CPU are PyTorch's alone, so that torch.compile and tracers see them as ever.

    With a simulated GPU in use, its modes are set aside meanwhile; tensors on it are not to be used inside. With a real
    one it only keeps a warning of the compiler's quiet. Raises RuntimeError if no GPU is in use.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Guards may run slower")  # the compiler's, of Python 3.13.0
        if current().simulated:
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch._C.DisableTorchFunction())
            if "torch._dynamo" in sys.modules:  # which a simulated GPU has told to run everything eagerly
                stack.enter_context(torch.compiler.set_stance("default"))
        yield


class Partitioned(nn.Module):
    """The two graphs of a model, and the model's parameters: a module to call in the model's place.

    `forward_graph` gives the model's output and then what is saved for backward; `backward_graph` takes what was saved
    and the output's gradient. Both run operator by operator, which no backend of torch.compile would do: what is saved
    is the cut's, temporaries and time are not inductor's.
    """

    def __init__(self, model: nn.Module, forward_graph: GraphModule, backward_graph: GraphModule):
        super().__init__()
        self.model = model
        self.forward_graph, self.backward_graph = forward_graph, backward_graph

    def forward(self, *inputs: Tensor) -> Tensor:
        return _Halves.apply(self.forward_graph, self.backward_graph, *self.model.parameters(), *inputs)

    @property
    def saved(self) -> tuple[str, ...]:
        """Names of the tensors in the graph that are saved for backward."""
        outputs = next(node for node in self.forward_graph.graph.nodes if node.op == "output").args[0]
        return tuple(node.name for node in outputs[1:])

    @property
    def operators(self) -> dict[str, bool]:
        """The operators of the forward graph in their order, and whether the result of each is saved for backward.

        Views, which make no tensor, are left out; a result of which a view is saved counts as saved.
        """
        nodes = list(self.forward_graph.graph.nodes)
        saved = {_base(node) for node in nodes[-1].args[0][1:]}
        called = [node for node in nodes if node.op == "call_function" and _base(node) is node]
        return {node.name: node in saved for node in called}


def _base(node):
    """The node whose result a view looks at; any other node itself."""
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
        ctx.maybe_clear_saved_tensors()  # as AOTAutograd does: each goes once the graph has used it
        return (None, None, *Interpreter(ctx.backward_graph).boxed_run(arguments))


def partition(model: nn.Module, *inputs: Tensor, cut: Callable, decompositions: dict | None = None) -> Partitioned:
    """Traces a model of the CPU with AOTAutograd, and cuts its graph into two that run on the GPU. Nothing is computed.

    `inputs` are tensors of the CPU, positional arguments of the model; the graphs hold for their shapes alone. `cut` is
    a partitioner of `functorch.compile`: `default_partition` saves what autograd saves, inductor's
    `min_cut_rematerialization_partition` looks for the fewest bytes. `decompositions` breaks operators up first
    (inductor has `torch._inductor.decomposition.select_decomp_table()`). The model has one output, and no buffers:
    ValueError otherwise, or if a tensor is not on the CPU.
    """
    from torch._functorch.aot_autograd import aot_export_joint_simple  # here: the import takes a second

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
            node.meta.clear()  # the tracer's own tensors: Ledger would meet them among the living
            if "device" in node.kwargs:  # a tensor made in the graph, where the trace was
                node.update_kwarg("device", torch.device("cuda"))
        half.recompile()
    return Partitioned(model, *halves)
