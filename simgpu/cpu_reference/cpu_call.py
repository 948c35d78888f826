"""A call of an operator on the simulated GPU, prepared for the CPU, and the registry of CUDA-only operators."""

from __future__ import annotations

import torch

from simgpu.op_info.arguments import Arguments
from simgpu.op_info.op_spec import overloads, registers


class Call(Arguments):
    """Holds one call, with CPU tensors in place of the simulated ones.

    `outputs` holds the simulated results, which have their shapes, dtypes and strides.
    """

    __slots__ = ("outputs",)

    def __init__(self, operator, args, kwargs, outputs):
        super().__init__(operator, args, kwargs)
        self.outputs = outputs

    def result(self, number: int) -> torch.Tensor:
        """Returns a CPU tensor of zeros with the shape and dtype of a result."""
        like = self.outputs[number]
        return torch.zeros(like.shape, dtype=like.dtype, device="cpu")


cpu_impl = registers("cpu", overloads)
"""Registers the CPU computation of operators that only CUDA has, or whose results CUDA lays out differently.

"mm" is aten.mm in all its overloads, "mm.default" is one. The function takes a `Call` and returns the results in the
operator's order. A result that is None stays zeros.
"""
