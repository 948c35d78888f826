"""One operator call as its CUDA code sees it, and the registry of rules."""

import math
from typing import Any

import torch

from simgpu.op_info import arguments, composite_explicit
from simgpu.op_info.inplace_out_variants import variants
from simgpu.op_info.op_spec import Conditional, Since, declare, named, overloads, registers, spec
from simgpu.ops import custom


def rule(*names: str, only: bool = False, since: tuple[int, int] | None = None):
    """Registers a function of one `OpCall` for operators: "mm" is aten.mm in all its overloads, "mm.default" is one.

    A single overload includes those that write the same result into an existing tensor (mm.out, cumsum_), unless `only`
    is set. With `since`, the function replaces the rule of these overloads from that version of torch on. Raises
    ValueError if an operator already has a rule.
    """

    def register(function):
        for key in overloads(names):
            if since is not None:
                declare(key, allocate_since=Since(function, since))
                continue
            declare(key, allocate=function)
            for variant in () if only else variants(key):
                if spec(variant).allocate_as_variant is None:
                    declare(variant, allocate_as_variant=function)
        return function

    return register


def decomposition(*names: str, when=None):
    """Declares that CUDA runs C++ which calls other operators for these ("_trilinear.default"), which then allocate
    the memory.

    This is always so, or if when(*args, **kwargs). A plain call means PyTorch's own device-independent kernel
    (CompositeExplicitAutograd). As a decorator, it registers a function that does what CUDA's code does. It is called
    with the operator's arguments, and each operator that it calls is seen in turn.
    """
    operators = named(" ".join(names))
    for operator in operators:
        declare(operator, decompose=Conditional(None, when))

    def register(function):
        for operator in operators:
            spec(operator).decompose = Conditional(function, when)
        return function

    return register


def decomposition_of(operator, args, kwargs):
    """Returns how CUDA decomposes this call of an OpOverload: (function, or None for PyTorch's own kernel).

    Returns None if the operator has a kernel.
    """
    declared = spec(operator).decompose
    if declared is not None:
        return (declared.function,) if declared.holds(args, kwargs) else None
    if operator.namespace not in ("aten", "fsdp"):
        function = custom.function_of(operator)
        return None if function is None else (function,)
    return (None,) if rule_for(operator) is None and composite_explicit.on_gpu_too(operator) else None


def has_decomposition(operator) -> bool:
    """Returns whether `decomposition_of` returns a decomposition of an OpOverload for at least some calls."""
    if operator.namespace not in ("aten", "fsdp"):
        return custom.function_of(operator) is not None
    return spec(operator).decompose is not None or (
        rule_for(operator) is None and composite_explicit.on_gpu_too(operator)
    )


def preprocess_args(*names: str, when):
    """Declares that CUDA's code first converts the arguments of these operators, with other operators.

    The function is called with the arguments if when(*args, **kwargs), and each operator that it calls is seen in turn.
    It returns the positional arguments with which the operator then runs.
    """

    def register(function):
        for operator in named(" ".join(names)):
            declare(operator, preprocess=Conditional(function, when))
        return function

    return register


refuses = registers("refuse", overloads)
"""Registers a function that raises CUDA's error for a call before anything is allocated.

It is for calls that PyTorch's meta kernels accept or refuse with a different text. It is called with the operator, its
positional and its keyword arguments. "sub.Tensor" is one overload; "sub" are all.
"""


def rule_for(operator):
    """Returns the rule of an OpOverload, or None."""
    known = spec(operator)
    return known.allocate or known.allocate_as_variant


class OpCall(arguments.Arguments):
    """One call of an ATen operator on the simulated GPU.

    `outputs` are the tensors that the operator returns, including None entries. `machine` is the GPU. `in_backward`
    says whether autograd's own thread would run it on a real GPU.
    """

    __slots__ = ("outputs", "machine", "in_backward", "_allocate", "_scratch")

    def __init__(self, operator, args, kwargs, outputs, machine, in_backward, allocate):
        super().__init__(operator, args, kwargs)
        self.outputs, self.machine, self.in_backward = outputs, machine, in_backward
        self._allocate = allocate
        self._scratch = []

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an argument by its name, or `default` if the operator has none, for rules of several operators."""
        return self[name] if arguments.has(self.operator, name) else default

    @property
    def first(self) -> Any:
        """Returns the first argument, whose name may differ among operators with one rule."""
        return arguments.first(self.operator, self.args, self.kwargs)

    def allocate_outputs(self, *outputs) -> None:
        """Allocates these outputs now, in this order. An alias or None is skipped."""
        for output in outputs:
            if output is not None:
                self._allocate(output)

    def allocate_output(self) -> torch.Tensor:
        """Allocates the only output now, and returns it."""
        (output,) = self.outputs
        self._allocate(output)
        return output

    def scratch(self, nbytes: int):
        """Allocates `nbytes` for the operator's internal use, until `release` or the end of the operator."""
        block = self.machine.allocator.malloc(nbytes, self.machine.stream)
        if block is not None:
            self._scratch.append(block)
        return block

    def scratch_like(self, tensor, dtype=None):
        """Allocates scratch for a dense copy of `tensor`, in `dtype` if given."""
        return self.scratch(math.prod(tensor.shape) * (dtype or tensor.dtype).itemsize)

    def contiguous(self, *tensors) -> list:
        """Allocates scratch for the copy that `contiguous()` makes of each tensor; None for a contiguous one, and for
        None.
        """
        return [None if tensor is None or tensor.is_contiguous() else self.scratch_like(tensor) for tensor in tensors]

    def release(self, *blocks) -> None:
        """Frees scratch blocks in this order. None, from a request of 0 bytes, is skipped."""
        for block in blocks:
            if block is not None:
                self._scratch.remove(block)
                self.machine.allocator.free(block)

    def finish(self) -> None:
        """Frees the remaining scratch, latest first, as C++ destroys locals."""
        while self._scratch:
            self.machine.allocator.free(self._scratch.pop())
