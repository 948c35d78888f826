"""Finds what autograd saves between forward and backward, and which module and operator saves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from helpers.blocks import allocated_blocks
from labkit.gpu import requested

OUTPUT = "the output"  # held only by the caller


class Saved(NamedTuple):
    """A tensor that autograd saved: its storage's address and bytes, and the tensor's own shape and dtype."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@contextmanager
def saving() -> Iterator[list[Saved]]:
    """Yields a list that collects what autograd saves inside the ``with``, in order, on any device.

    A storage that two operators save is in the list twice, so count by address. Recording keeps nothing alive longer.
    """
    notes: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        notes.append(Saved(storage.data_ptr(), storage.nbytes(), tuple(tensor.shape), tensor.dtype))
        return tensor.detach()  # the tensor itself may hold the graph that would hold it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield notes


class Keeps(NamedTuple):
    """Holds what an operator saves: in words, and in bytes as counted by the hooks and by the allocator."""

    what: str
    nbytes: int
    by_allocator: int


def keeps(operator: Callable[[Tensor], Tensor], shape: Sequence[int], held: Sequence[Tensor] = ()) -> Keeps:
    """Measures what autograd saves of ``operator(h)``, for a float32 ``h`` of that shape that is not a leaf.

    It counts in two ways. The hooks record what is saved, each storage once. The allocator shows what is alive when
    ``h`` and the result are released and only the graph remains. ``held`` are tensors that the caller holds, which
    neither counts. The first matmul allocates cuBLAS's workspace, so run one before.
    """
    names = {tensor.untyped_storage().data_ptr(): "what we hold" for tensor in held}
    start = requested()
    leaf = torch.zeros(*shape, device="cuda", requires_grad=True)
    given: Tensor | None = leaf * 1
    with saving() as notes:
        result: Any = operator(given)
    sizes = {note.address: note.nbytes for note in notes if note.address not in names}
    names |= {_start(result): "output", _start(given): "input"}
    said = [names.get(note.address, f"{str(note.dtype)[6:]} {list(note.shape)}") for note in notes]
    result, given = result.grad_fn, None
    left = requested() - start - leaf.nbytes
    return Keeps(" and ".join(dict.fromkeys(said)) or "nothing", sum(sizes.values()), left)


def layer_keeps(model: nn.Module, layers: nn.ModuleList, *inputs: Any, **named: Any) -> int:
    """Returns the bytes that the last of a model's equal layers saves, as the difference of ``model(*inputs)`` without
    it.

    ``layers`` is the model's own list of two or more layers, which is left as it was. The figure is in requested bytes,
    from forward passes after a first one that allocates the workspaces. Raises ``ValueError`` for fewer than two
    layers.
    """
    if len(layers) < 2:
        raise ValueError(f"layer_keeps: two layers or more are wanted, not {len(layers)}")
    _forward_keeps(model, inputs, named)
    whole = _forward_keeps(model, inputs, named)
    last = layers[-1]
    del layers[-1]
    try:
        return whole - _forward_keeps(model, inputs, named)
    finally:
        layers.append(last)


def _forward_keeps(model: nn.Module, inputs: tuple, named: Mapping[str, Any]) -> int:
    before = requested()
    outputs = model(*inputs, **named)
    kept = requested() - before
    del outputs
    return kept


def owners(model: nn.Module, *inputs: Any, **named: Any) -> tuple[Any, pd.DataFrame]:
    """Runs a forward pass; returns its outputs, and a row for each block that it has added and that is still alive.

    The column ``module`` is the submodule in which the block was first saved (its name in ``named_modules``, "" outside
    all of them). ``kept for`` lists the operators of the graph that save it: "the output" if only the caller holds it,
    and "" if it is not part of the graph (a workspace, or made under ``no_grad``). ``bytes`` is the block's size, and
    ``remainder`` the bytes of it that are a remainder (:mod:`helpers.blocks`).
    """
    before = allocated_blocks()
    with saving_by_module(model) as module_of:
        outputs = model(*inputs, **named)
    held = list(_tensors(outputs))
    kept = _kept_by(held)
    shown = {_start(tensor) for tensor in held}
    rows = []
    for at, block in allocated_blocks().items():
        if at not in before:
            operators = ", ".join(sorted(kept.get(at, ()))) or (OUTPUT if at in shown else "")
            rows.append((module_of.get(at, ""), operators, block.size, block.remainder))
    return outputs, pd.DataFrame(rows, columns=["module", "kept for", "bytes", "remainder"])


@contextmanager
def saving_by_module(model: nn.Module) -> Iterator[dict[int, str]]:
    """Yields a dictionary that collects, for each saved storage's address, the submodule that saved it first."""
    inside, module_of = [""], {}

    def keep(tensor: Tensor) -> Tensor:
        module_of.setdefault(tensor.untyped_storage().data_ptr(), inside[-1])
        return tensor.detach()

    def entering(name: str):
        return lambda module, inputs: inside.append(name)

    def leave(module, inputs, outputs) -> None:
        inside.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(entering(name)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
        yield module_of


def _kept_by(outputs: list[Tensor]) -> dict[int, set[str]]:
    """Returns the operators whose graph nodes save memory on the GPU, by the storage's address."""
    kept: dict[int, set[str]] = {}
    seen: set = set()
    todo = [output.grad_fn for output in outputs]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [before for before, _ in node.next_functions]
        for tensor in _saved_by(node):
            name = node.name().removesuffix("0").removesuffix("Backward")
            kept.setdefault(_start(tensor), set()).add(name)
    return kept


def _saved_by(node) -> Iterator[Tensor]:
    """Yields the tensors on the GPU that a node of the graph saves; a custom function names them ``saved_tensors``."""
    names = [name for name in dir(node) if name.startswith("_saved_")] or ["saved_tensors"]
    for name in names:
        saved = getattr(node, name, ())
        for one in saved if isinstance(saved, list | tuple) else [saved]:
            if isinstance(one, Tensor) and one.is_cuda:
                yield one


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """Yields the tensors on the GPU in outputs of any nesting."""
    if isinstance(outputs, Tensor):
        if outputs.is_cuda:
            yield outputs
    elif isinstance(outputs, Mapping):
        for one in outputs.values():
            yield from _tensors(one)
    elif isinstance(outputs, list | tuple):
        for one in outputs:
            yield from _tensors(one)


def _start(tensor: Tensor) -> int:
    """Returns the address of the tensor's storage, which all views of one storage share."""
    return tensor.untyped_storage().data_ptr()
