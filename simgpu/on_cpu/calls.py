"""A call of an operator on the simulated GPU, as the CPU is to compute it, and the registry of CUDA's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu.tensors import arguments
from simgpu.tensors.registry import overloads

_equivalents: dict = {}


class Call:
    """One call: tensors of the CPU in the place of simulated ones.

    `call["dropout_p"]` is the argument of that name in the operator's schema, `call["query", "key"]` are several.
    `outputs`: the simulated results, which have their shapes, dtypes and strides.
    """

    __slots__ = ("args", "kwargs", "operator", "outputs")

    def __init__(self, operator, args, kwargs, outputs):
        self.operator, self.args, self.kwargs, self.outputs = operator, args, kwargs, outputs

    def __getitem__(self, names: str | tuple[str, ...]) -> Any:
        if isinstance(names, str):
            return arguments.given(self.operator, names, self.args, self.kwargs)
        return tuple(arguments.given(self.operator, name, self.args, self.kwargs) for name in names)

    def result(self, number: int) -> torch.Tensor:
        """A tensor of zeros of the CPU with shape and dtype of a result."""
        like = self.outputs[number]
        return torch.zeros(like.shape, dtype=like.dtype, device="cpu")


def equivalent(*names: str):
    """Registers what the CPU computes for operators that only CUDA has, or whose results it lays out otherwise.

    "mm" is aten.mm in all its overloads, "mm.default" is one. The function takes a `Call` and returns the results, in
    the operator's order; one that is None is left as it is, zeros.
    """

    def register(function: Callable) -> Callable:
        _equivalents.update(dict.fromkeys(overloads(names), function))
        return function

    return register


def equivalent_of(operator) -> Callable | None:
    """What was registered for an OpOverload, or None."""
    return _equivalents.get(operator)
