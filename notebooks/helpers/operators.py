"""Counts what each operator of a piece of work computes and moves, the two inputs of the roofline model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import NamedTuple

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.rooflines import roofline

MATMUL, REDUCTION, ELEMENTWISE = "matmul", "reduction", "elementwise"
# Parts of the names of operators that reduce over a dimension or over all elements.
_REDUCING = ("softmax", "norm", "sum", "mean", "var", "loss", "max", "min", "any", "all")
# Operators that allocate memory or report on it, and start no kernel.
_NO_KERNEL = ("empty", "detach", "_unsafe_view", "lift_fresh", "_local_scalar_dense", "set_", "record_stream")
_LOOKS_UP = ("embedding", "index", "index_select", "gather")  # they read only some rows of their first argument
_OVERWRITES = ("copy_", "zero_", "fill_")  # they do not read what they write to


class Operator(NamedTuple):
    """Describes one call of an operator: its name, its kind, and what it computes and moves.

    ``flop`` is the number of operations as torch.utils.flop_counter counts them, for matmuls and convolutions only. It
    is 0 for all others, which do a few operations per element. ``read`` and ``written`` are the bytes of the input and
    output tensors, each counted once. Views are not recorded, because they move nothing.
    """

    name: str
    kind: str
    flop: int
    read: int
    written: int

    @property
    def nbytes(self) -> int:
        return self.read + self.written


def operators(work: Callable[[], object]) -> list[Operator]:
    """Returns the operators that ``work()`` runs on the GPU, in order, including those of backward.

    >>> operators(lambda: x + y)
    [Operator(name='add', kind='elementwise', flop=0, read=..., written=...)]

    Caches are not considered, nor data that an operator reads a second time internally.
    """
    counter = _Counter()
    with counter:
        work()
    return counter.calls


def least_times(calls: Iterable[Operator], peak: float, bandwidth: float) -> pd.DataFrame:
    """Returns a row per operator: its figures, the least milliseconds on the GPU (``ms``), and its bottleneck.

    It applies ``rooflines.roofline`` to each, without the host, so ``bound`` is ``"memory"`` or ``"compute"``. ``peak``
    is in operations per second, ``bandwidth`` in bytes per second. Raises what ``rooflines.roofline`` raises.
    """
    rows = [(one, roofline(one.flop, one.nbytes, peak, bandwidth)) for one in calls]
    return pd.DataFrame([{**one._asdict(), "ms": 1e3 * limit.seconds, "bound": limit.bound} for one, limit in rows])


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Operator] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        kwargs = kwargs or {}
        out = operator(*args, **kwargs)
        name = operator._schema.name.partition("::")[2]
        if not (operator.is_view or name.startswith(_NO_KERNEL)):
            self.calls.append(_called(operator, name, args, kwargs, out))
        return out


def _called(operator, name: str, args, kwargs, out) -> Operator:
    flop = _flop(operator, args, kwargs, out)
    kind = MATMUL if flop else REDUCTION if any(word in name for word in _REDUCING) else ELEMENTWISE
    written = _nbytes(out)
    left = args[1:] if name in (*_LOOKS_UP, *_OVERWRITES) else args
    read = _nbytes((left, kwargs)) + (written if name in _LOOKS_UP else 0)
    return Operator(name, kind, flop, read, written)


def _flop(operator, args, kwargs, out) -> int:
    from torch.utils.flop_counter import flop_registry  # its import may print a line about Triton

    count = flop_registry.get(operator.overloadpacket)
    return 0 if count is None else count(*args, **kwargs, out_val=out)


def _nbytes(values) -> int:
    """Returns the bytes on the GPU (real or simulated) of all tensors in ``values``; expanded elements count once."""
    on_gpu = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and not one.is_cpu]
    return sum(map(_stored, on_gpu))


def _stored(tensor: torch.Tensor) -> int:
    places = (length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return tensor.element_size() * prod(places)
