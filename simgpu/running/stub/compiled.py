"""What is known of the results of compiled code on the stub engine.

Inductor's kernels compute nothing here. But a compiled function may count labels, or shift a mask, and the program
then reads the result. So the part of Dynamo's graph that leads to results of integers or booleans is computed on the
CPU, if the values of its inputs are known (see `known`). An operator is trusted there if `known` has it, and if
nothing was rounded: fused kernels may round differently. Inputs that the compiled code does not change stay known.

While it compiles, Inductor computes constants on the GPU, reads them back and simplifies the graph with them. These
are known with all their operators.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

from simgpu.running.stub.known import COMPUTED, FILLED, LIKE, MOST_BOOLS, ROUNDED, SIZED, Known, UnknownError

_TRUSTED = frozenset((*FILLED, *LIKE, *COMPUTED, *SIZED, "_to_copy", "_unsafe_view"))
_NAMES = ("add", "and", "concat", "floordiv", "lshift", "mod", "mul", "or", "pow", "rshift", "sub", "truediv", "xor")
_IN_PLACE = frozenset((operator.setitem, operator.delitem, *(getattr(operator, f"i{name}") for name in _NAMES)))
_METHODS = frozenset(("__setitem__", *(f"__i{name}__" for name in _NAMES)))


def follow(torch: Any, known: Known) -> None:
    """Wraps what torch.compile calls with each graph, where this version of torch has it."""
    compiler = getattr(torch, "_TorchCompileInductorWrapper", None)
    if compiler is None:
        return
    real = compiler.__call__

    @functools.wraps(real)
    def call(self, graph, inputs, *args, **kwargs):
        _fold(torch, known)
        plans = _plans(torch, graph)
        return _followed(torch, known, plans, real(self, graph, inputs, *args, **kwargs))

    compiler.__call__ = call


@functools.cache
def _fold(torch: Any, known: Known) -> None:
    """Makes what Inductor computes to fold constants known, whatever the operator, and on each version of torch."""
    from torch._inductor.constant_folding import ConstantFolder
    from torch.utils._python_dispatch import TorchDispatchMode

    class Folding(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            value = known.of(args[0]) if operator is read and type(args[0]) is torch.Tensor else None
            with known.read_of(value):
                result = operator(*args, **kwargs)
            if value is not None:
                return value.item()
            if type(result) is torch.Tensor and result.is_cuda and known.of(result) is None:  # and no fake tensor
                known.note(operator, result, args, {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs)
            return result

    read = torch.ops.aten._local_scalar_dense.default
    run = ConstantFolder.run

    @functools.wraps(run)
    def folded(self):
        with Folding():
            return run(self)

    ConstantFolder.run = folded


def _followed(torch: Any, known: Known, plans: dict[int, Plan], compiled: Callable) -> Callable:
    """Wraps a compiled function so that inputs stay known, and its results become known."""

    @functools.wraps(compiled, updated=())  # without the attribute by which Dynamo finds what is wrapped
    def call(*args):
        given = [one for one in args if isinstance(one, torch.Tensor) and one.is_cuda and not one.is_inference()]
        before = [(one, one._version) for one in given if known.of(one) is not None]
        values = {number: plan.values(torch, known, args) for number, plan in plans.items()}
        results = compiled(*args)
        for one, version in before:
            if one._version == version:
                known.stays(one)
        for number, value in values.items():
            if value is not None and type(results[number]) is torch.Tensor and results[number].is_cuda:
                known.keep(results[number], value)
        return results

    return call


class Plan:
    """The nodes of a graph that one of its results follows from, in their order."""

    def __init__(self, nodes: list[Any], inputs: dict[Any, int]):
        self.nodes, self.inputs = nodes, inputs

    def values(self, torch: Any, known: Known, args: tuple) -> Any:
        """Computes the result on the CPU from the arguments of a call; returns None if it is not known."""
        mode = _exact(torch, known)
        found: dict[Any, Any] = {}
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for node, number in self.inputs.items():
                    found[node] = _known(torch, known, args[number])
                with mode:
                    for node in self.nodes:
                        found[node] = _called(torch, node, found)
        except (UnknownError, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            return None  # an operator that is not trusted, or that the CPU does not have
        return found[self.nodes[-1]] if self.nodes else None


def _known(torch: Any, known: Known, argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    values = known.of(argument)
    if values is None:
        raise UnknownError
    return values


def _called(torch: Any, node: Any, found: dict[Any, Any]) -> Any:
    """Returns what a node of the graph computes from the values of others."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), found.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


@functools.cache
def _exact(torch: Any, known: Known) -> Any:
    """Returns a dispatch mode that computes on the CPU, and refuses what is not trusted to equal the GPU's result."""
    from torch.utils._python_dispatch import TorchDispatchMode

    same = functools.partial(_same_on_gpu, torch, known)

    class Exact(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None:
                kwargs["device"] = "cpu"
            name = operator.name().removeprefix("aten::")
            schema = operator._schema
            view = any(one.alias_info is not None for one in schema.returns)
            if schema.is_mutable or not (view or name in _TRUSTED):
                raise UnknownError(name)
            result = operator(*args, **kwargs)
            if view or not isinstance(result, torch.Tensor) or same(operator, result, args, kwargs):
                return result
            raise UnknownError(name)

    return Exact()


def _same_on_gpu(torch: Any, known: Known, operator: Any, result: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether a compiled kernel computes the numbers of a result exactly as the CPU does."""
    name = operator.name().removeprefix("aten::")
    if result.numel() > MOST_BOOLS:
        return False
    if name in ROUNDED and result.dtype.is_floating_point:
        return result.dtype is torch.float32 and _is_exact(torch, operator, result, args, kwargs)
    if name == "_to_copy":  # Inductor may compute in float32 what the graph converts to a smaller dtype
        return not result.dtype.is_floating_point or torch.equal(result.double(), args[0].double())
    return name == "_unsafe_view" or known.as_on_gpu(name, result, args, kwargs)


def _is_exact(torch: Any, operator: Any, result: Any, args: tuple, kwargs: dict) -> bool:
    """Returns whether nothing was rounded, so that fused operators give this result too.

    A kernel may also multiply by the reciprocal of what it divides by.
    """
    wide = [one.double() if isinstance(one, torch.Tensor) else one for one in args]
    if not torch.equal(operator(*wide, **kwargs), result.double()):
        return False
    if operator is not torch.ops.aten.div.Tensor:
        return True
    reciprocal = 1 / torch.as_tensor(args[1], dtype=torch.float32)
    return torch.equal(args[0].float() * reciprocal, result)


def _plans(torch: Any, graph: Any) -> dict[int, Plan]:
    """Returns a plan for each result of integers or booleans, by its number."""
    if not isinstance(graph, torch.fx.GraphModule):
        return {}
    nodes = list(graph.graph.nodes)
    inputs = {node: number for number, node in enumerate(one for one in nodes if one.op == "placeholder")}
    changed = _above(one for node in nodes for one in _changed_by(torch, node))
    plans = {}
    results = nodes[-1].args[0]
    for number, result in enumerate(results if isinstance(results, (tuple, list)) else ()):
        if not isinstance(result, torch.fx.Node) or not _of_integers(torch, result):
            continue
        needed = _above([result])
        computed = [node for node in nodes if node in needed and node not in inputs]
        if needed.isdisjoint(changed) and all(node.op in ("call_function", "call_method") for node in computed):
            plans[number] = Plan(computed, {node: place for node, place in inputs.items() if node in needed})
    return plans


def _above(nodes: Iterable[Any]) -> set[Any]:
    """Returns these nodes and all that they follow from."""
    above, waiting = set(), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in above:
            above.add(node)
            waiting.extend(node.all_input_nodes)
    return above


def _of_integers(torch: Any, node: Any) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex)


def _changed_by(torch: Any, node: Any) -> list[Any]:
    """Returns the nodes whose values a node may change in place."""
    inputs = node.all_input_nodes
    if node.op == "call_method":
        in_place = node.target.endswith("_") and not node.target.endswith("__")
        return inputs[:1] if in_place or node.target in _METHODS else []
    if node.op != "call_function":
        return inputs if node.op == "call_module" else []
    if node.target in _IN_PLACE:
        return inputs[:1]
    name = getattr(node.target, "__name__", "")
    written: list[Any] = []
    torch.fx.node.map_arg(node.kwargs.get("out"), written.append)
    if name.endswith("_") or node.kwargs.get("inplace"):
        return [*inputs[:1], *written]
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return inputs
    if isinstance(node.target, torch._ops.HigherOrderOperator) and "mutation" in name:
        return inputs
    return written
