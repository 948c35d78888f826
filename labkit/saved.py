"""What autograd keeps between forward and backward, and which module and operator keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from labkit.blocks import allocated_blocks
from labkit.counters import requested

OUTPUT = "the output"  # what nothing keeps but the caller


class Saved(NamedTuple):
    """A tensor that autograd saved: where its storage begins, the storage's bytes, and the tensor's own shape."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@contextmanager
def saving() -> Iterator[list[Saved]]:
    """Gives a list that fills with what autograd saves inside the ``with``, in its order, on whatever device.

    A storage that two operators save is in the list twice: count by address. Watching keeps nothing alive that would
    not live without it.
    """
    notes: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        notes.append(Saved(storage.data_ptr(), storage.nbytes(), tuple(tensor.shape), tensor.dtype))
        return tensor.detach()  # the tensor itself may hold the graph that would hold it

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield notes


class Keeps(NamedTuple):
    """What an operator keeps: in words, and its bytes by the hooks and by the allocator."""

    what: str
    nbytes: int
    by_allocator: int


def keeps(operator: Callable[[Tensor], Tensor], shape: Sequence[int], held: Sequence[Tensor] = ()) -> Keeps:
    """What autograd keeps of ``operator(h)`` for an ``h`` of that shape in float32, which is no leaf.

    Two witnesses: the hooks say what is saved, each storage once; the allocator says what is alive when ``h`` and the
    result are released and only the graph is left. ``held`` are tensors that the caller holds: neither counts them. A
    first product of matrices takes cuBLAS's workspace: call one before.
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
    """Bytes that the last of a model's equal layers keeps: what ``model(*inputs)`` keeps with it, less without it.

    ``layers`` is the model's own list of them, of two or more; the model is left as it was. Requested bytes, of a
    forward pass after a first one, which takes the workspaces. Raises ``ValueError`` for fewer than two layers.
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
    """A forward pass; its outputs, and a row for each block of memory that it has added and that is still alive.

    The columns: ``module``, the submodule in which the block was first saved (its name in ``named_modules``, ""
    outside all of them); ``kept for``, the operators of the graph that keep it ("" where it is no part of the graph:
    a workspace, or what was made under ``no_grad``), "the output" for what only the caller holds; ``bytes`` of the
    block, and how many of them are its ``remainder`` (:mod:`labkit.blocks`).
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
    """Gives a dictionary that fills with the address of each saved storage and the submodule that saved it first."""
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
    """What the graph behind the outputs keeps on the GPU: the names of the operators, by the storage's address."""
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
    """The tensors on the GPU that a node of the graph has saved; a custom function calls them ``saved_tensors``."""
    names = [name for name in dir(node) if name.startswith("_saved_")] or ["saved_tensors"]
    for name in names:
        saved = getattr(node, name, ())
        for one in saved if isinstance(saved, list | tuple) else [saved]:
            if isinstance(one, Tensor) and one.is_cuda:
                yield one


def _tensors(outputs: Any) -> Iterator[Tensor]:
    """The tensors on the GPU in outputs of any nesting."""
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
    """Where the tensor's storage begins: views of one storage have the same."""
    return tensor.untyped_storage().data_ptr()
