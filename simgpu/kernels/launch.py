"""One operator call as its CUDA code sees it, and the registry of rules."""

import math
from typing import Any

import torch

from simgpu.kernels import any_device, custom
from simgpu.kernels.siblings import siblings
from simgpu.tensors import arguments
from simgpu.tensors.registry import overloads

_rules = {}
_of_siblings = {}  # what holds unless there is a rule
_made_of_others = {}
_prepared = {}
_refusals = {}


def rule(*names: str, only: bool = False):
    """Registers a function of one `Launch` for operators: "mm" is aten.mm in all its overloads; "mm.default" is one,
    and with it those that write the same into a tensor that is there (mm.out, cumsum_), unless `only` it is meant.
    """

    def register(function):
        for key in overloads(names):
            if key in _rules:
                raise ValueError(f"two rules for {key}: {_rules[key].__qualname__}, {function.__qualname__}")
            _rules[key] = function
            _of_siblings.update(dict.fromkeys([] if only else siblings(key), function))
        return function

    return register


def made_of_others(*names: str, when=None):
    """Says of operators ("_trilinear.default") that CUDA runs C++ which calls other operators, so that they take what
    those take: always, or if when(*args, **kwargs).

    Called alone, it means PyTorch's own kernel of that kind (CompositeExplicitAutograd); as a decorator, that the
    function does what CUDA's code does: it is called with the operator's arguments, and each operator that it calls is
    seen in turn.
    """
    operators = []
    for name in names:
        packet, _, overload = name.partition(".")
        operators.append(getattr(getattr(torch.ops.aten, packet), overload))
    _made_of_others.update(dict.fromkeys(operators, (None, when)))

    def register(function):
        _made_of_others.update(dict.fromkeys(operators, (function, when)))
        return function

    return register


def others_of(operator, args, kwargs):
    """How CUDA makes an OpOverload that is called like this of others: (function, or None for PyTorch's own kernel), or
    None if it has a kernel of its own."""
    if operator in _made_of_others:
        function, when = _made_of_others[operator]
        return (function,) if when is None or when(*args, **kwargs) else None
    if operator.namespace not in ("aten", "fsdp"):
        function = custom.function_of(operator)
        return None if function is None else (function,)
    return (None,) if rule_for(operator) is None and any_device.on_gpu_too(operator) else None


def has_others(operator) -> bool:
    """Whether `others_of` has something for an OpOverload, for some calls at least."""
    if operator.namespace not in ("aten", "fsdp"):
        return custom.function_of(operator) is not None
    return operator in _made_of_others or (rule_for(operator) is None and any_device.on_gpu_too(operator))


def is_made_of_others(operator) -> bool:
    """Whether `made_of_others` was told of an OpOverload."""
    return operator in _made_of_others


def prepared(*names: str, when):
    """Says of operators that CUDA's code first makes other arguments of those given, by operators of its own.

    The function is called with the arguments if when(*args, **kwargs), each operator that it calls is seen in turn, and
    it returns the positional arguments to run the operator with.
    """

    def register(function):
        for name in names:
            packet, _, overload = name.partition(".")
            _prepared[getattr(getattr(torch.ops.aten, packet), overload)] = function, when
        return function

    return register


def preparation_of(operator, args, kwargs):
    """What `prepared` was given for an OpOverload that is called like this, or None."""
    function, when = _prepared.get(operator, (None, None))
    return function if function is not None and when(*args, **kwargs) else None


def has_preparation(operator) -> bool:
    """Whether `prepared` was told of an OpOverload, for some calls at least."""
    return operator in _prepared


def refuses(*names: str):
    """Registers a function that raises what CUDA's code raises of a call, before anything is allocated, where PyTorch's
    meta kernels take it or say something else. It is called with the operator, its arguments by position, and those by
    name. "sub.Tensor" is one overload; "sub" are all."""

    def register(function):
        _refusals.update(dict.fromkeys(overloads(names), function))
        return function

    return register


def refusal_of(operator):
    """What `refuses` was given for an OpOverload, or None."""
    return _refusals.get(operator)


def rule_for(operator):
    """The rule of an OpOverload, or None."""
    return _rules.get(operator) or _of_siblings.get(operator)


class Launch:
    """One call of an ATen operator on the simulated GPU.

    `launch["dropout_p"]` is the argument of that name in the operator's schema, however it was given, with the schema's
    default if it was not; `launch["query", "key"]` are several. `outputs`: the tensors that the operator returns, those
    that are None included. `machine`: the GPU. `in_backward`: whether autograd's own thread would run it on a real GPU.
    """

    __slots__ = ("operator", "args", "kwargs", "outputs", "machine", "in_backward", "_allocate", "_scratch")

    def __init__(self, operator, args, kwargs, outputs, machine, in_backward, allocate):
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        self.outputs = outputs
        self.machine = machine
        self.in_backward = in_backward
        self._allocate = allocate
        self._scratch = []

    def __getitem__(self, names: str | tuple[str, ...]) -> Any:
        """An argument by its name, or a tuple of several by theirs. Raises KeyError for a name not in the schema."""
        if isinstance(names, str):
            return arguments.given(self.operator, names, self.args, self.kwargs)
        return tuple(arguments.given(self.operator, name, self.args, self.kwargs) for name in names)

    def get(self, name: str, default: Any = None) -> Any:
        """The same where one rule serves several operators: `default` for those without such an argument."""
        return self[name] if arguments.has(self.operator, name) else default

    @property
    def first(self) -> Any:
        """The first argument, which operators of one rule may call by different names."""
        return arguments.first(self.operator, self.args, self.kwargs)

    def give(self, *outputs) -> None:
        """Allocates these outputs now, in this order. What is no new storage (an alias, None) is passed over."""
        for output in outputs:
            if output is not None:
                self._allocate(output)

    def scratch(self, nbytes: int):
        """Allocates `nbytes` that nobody outside the operator sees. Freed by `release`, or when the operator ends."""
        block = self.machine.allocator.malloc(nbytes, self.machine.stream)
        if block is not None:
            self._scratch.append(block)
        return block

    def scratch_like(self, tensor, dtype=None):
        """Scratch of a dense copy of `tensor`, in `dtype` if given."""
        return self.scratch(math.prod(tensor.shape) * (dtype or tensor.dtype).itemsize)

    def contiguous(self, *tensors) -> list:
        """Scratch for the copy that `contiguous()` makes of each tensor; None for one that is, and for None."""
        return [None if tensor is None or tensor.is_contiguous() else self.scratch_like(tensor) for tensor in tensors]

    def release(self, *blocks) -> None:
        """Frees scratch blocks in this order (None, from a request of 0 bytes, is passed over)."""
        for block in blocks:
            if block is not None:
                self._scratch.remove(block)
                self.machine.allocator.free(block)

    def finish(self) -> None:
        """Frees the scratch that is left, latest first, as C++ destroys locals."""
        while self._scratch:
            self.machine.allocator.free(self._scratch.pop())
