"""One record per operator: everything that this project has for an operator of PyTorch, and where it was declared.

A decorator in the file of an operator's family fills a field of the record, for instance `@rule("sort")` fills
`allocate`, and `mark` sets a field for several operators at once. `spec(operator)` returns the record, from which each
stage of a call reads its field. The fields are in the order of these stages. `simgpu explain aten::sort` prints the
record, together with the tables of names that other modules keep for the clock and for error texts (explain.py).
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch

_aten = torch.ops.aten


class Conditional(NamedTuple):
    """A function that holds only for the calls for which when(*args, **kwargs) is true, or for all if `when` is None.

    `function` is None where PyTorch's own device-independent kernel is meant (CompositeExplicitAutograd).
    """

    function: Callable | None
    when: Callable[..., bool] | None = None

    def holds(self, args, kwargs) -> bool:
        """Returns whether the function is for a call with these arguments."""
        return self.when is None or self.when(*args, **kwargs)


class Since(NamedTuple):
    """A function that holds from a version of torch on, for example (2, 14)."""

    function: Callable
    version: tuple[int, int]


def _field(stage: str, word: str, plural: str, default: Any = None) -> Any:
    """Returns a field with the stage of a call that reads it, its word in `simgpu explain`, and its name in errors."""
    return field(default=default, metadata={"stage": stage, "word": word, "plural": plural})


@dataclass(slots=True, eq=False)
class OpSpec:
    """Holds what is known of one OpOverload. A field that nothing has declared is None, False or empty."""

    operator: Any = None

    composite: Callable | None = _field("above autograd", "CUDA composite", "CUDA composites")
    """Decomposes a CompositeImplicitAutograd operator as C++ does if is_cuda() is true: `@cuda_composite`."""
    zero_tensor: Callable | None = _field("above autograd", "ZeroTensor", "kernels for ZeroTensors")
    """Computes the operator for ZeroTensors (ops/zero_tensors.py)."""
    crosses_devices: bool = _field("placement", "host", "entries", False)
    """Whether it reads or writes across devices, so its arguments may be on different ones."""
    index_on_host: bool = _field("placement", "host", "entries", False)
    """Whether it accepts index tensors of the host, and copies them to the device itself."""
    values_on_host: bool = _field("placement", "host", "entries", False)
    """Whether it reads the values of a host tensor, and is decomposed on the device."""
    scalar_on_host: bool = _field("placement", "host", "entries", False)
    """Whether it accepts a scalar tensor of the host that its meta kernel refuses."""
    refuse: Callable | None = _field("check", "refusal", "refusals")
    """Raises CUDA's error for a call, before anything is allocated: `@refuses`."""
    converted_number: str | None = _field("check", "number", "numbers")
    """The name of the argument whose number the kernel converts to the result's dtype (checks/number_ranges.py)."""
    decompose: Conditional | None = _field("decomposition", "decomposition", "decompositions")
    """The operators of which CUDA's kernel is made: `@decomposition`."""
    parts_have_values: bool = _field("decomposition", "known parts", "entries", False)
    """Whether the parts of its decomposition give the right values one by one."""
    parts_read_values: bool = _field("decomposition", "known parts", "entries", False)
    """Whether its decomposition reads values on the way."""
    preprocess: Conditional | None = _field("decomposition", "preparation", "preparations")
    """Converts the arguments with other operators, as CUDA's code does before its kernel: `@preprocess_args`."""
    shapes: Callable | None = _field("shapes", "shapes", "shapes")
    """Returns results on meta tensors, where PyTorch has no meta kernel or one with other strides: `@meta`."""
    allocate: Callable | None = _field("memory", "rule", "rules")
    """Allocates, in CUDA's order, what the kernel needs in addition to its outputs: `@rule`."""
    allocate_since: Since | None = _field("memory", "newer rule", "newer rules")
    """The rule that replaces `allocate` from a version of torch on: `@rule(..., since=(2, 14))`."""
    allocate_as_variant: Callable | None = _field("memory", "rule of a variant", "rules of variants")
    """The rule of an overload that runs the same code (out=, in place); used where there is no rule of its own."""
    kernel_among_others: bool = _field("time", "kernels", "entries", False)
    """Whether its decomposition has one kernel that is not an operator, which appears as an empty tensor."""
    overwrites: bool = _field("values", "values", "entries", False)
    """Whether the previous content of the tensor that it writes does not matter."""
    decided_by: bool | None = _field("values", "values", "entries")
    """The value of an operand, everywhere in it, that decides the result whatever the other operand is."""
    cpu: Callable | None = _field("values=True", "on the CPU", "computations on the CPU")
    """Computes results on the CPU where it has no such operator, or one with another layout: `@cpu_impl`."""
    formula_calls: tuple = _field("backward", "formula's call", "entries", ())
    """Calls of autograd formulas that do something else on CUDA than on meta tensors (autograd/formulas.py)."""
    formula_guess: Any = _field("backward", "formula's guess", "guesses")
    """A formula that calls it, and whose behaviour on CUDA is not known here (autograd/formulas.py)."""
    has_formula: bool = _field("backward", "has a formula", "entries", False)
    """Whether its formula is one of those in `formula_calls` or `formula_guess` of other operators."""
    accumulates: bool = _field("backward", "accumulation", "entries", False)
    """Whether formulas call it in the CPU's accumulation dtype, which differs from CUDA's."""

    declared: dict[str, tuple[str, int]] = field(default_factory=dict)
    """File and line of the declaration of each field."""


FIELDS = {one.name: one for one in fields(OpSpec) if one.metadata}
"""The fields that can be declared, by name, in the order of a call's stages."""

_specs: dict[int, OpSpec] = {}  # by id, because PyTorch computes an OpOverload's hash in Python
_NOTHING = OpSpec()


def spec(operator) -> OpSpec:
    """Returns the record of an OpOverload; an empty one if nothing was declared for it. Not to be changed."""
    return _specs.get(id(operator), _NOTHING)


def specs() -> Iterator[OpSpec]:
    """Yields every record in which something was declared."""
    yield from _specs.values()


def declare(operator, **values) -> None:
    """Fills fields of an operator's record. Raises ValueError, and changes nothing, if one of them has a value."""
    known = spec(operator)
    for name, value in values.items():
        if name in known.declared:
            what = FIELDS[name].metadata["plural"]
            raise ValueError(f"two {what} for {operator}: {_name(getattr(known, name))}, {_name(value)}")
    record = _specs.setdefault(id(operator), OpSpec(operator))
    place = _caller()
    for name, value in values.items():
        setattr(record, name, value)
        record.declared[name] = place


def mark(names: str, **values) -> None:
    """Fills fields of the records of aten operators: "mul.Tensor exp" names exp's default overload."""
    for operator in named(names):
        declare(operator, **values)


def registers(field_name: str, named_by: Callable) -> Callable:
    """Returns a decorator that fills a field: `refuses = registers("refuse", overloads)`, then `@refuses("sub")`."""

    def decorator(*names: str) -> Callable:
        def register(function):
            for operator in named_by(names):
                declare(operator, **{field_name: function})
            return function

        return register

    return decorator


def defaults(names: Iterable[str]) -> list:
    """Returns OpOverloads of aten by name, each the default overload unless it names one: ("mul.Tensor", "exp")."""
    return named(" ".join(names))


def named(names: str) -> list:
    """Returns OpOverloads of aten by name: "mul.Tensor exp" includes exp's default overload, and no other one."""
    pairs = (name.partition(".") for name in names.split())
    return [getattr(getattr(_aten, packet), overload or "default") for packet, _, overload in pairs]


def overloads(names: Iterable[str]) -> Iterator:
    """Yields OpOverloads of aten by name: "mm" means all of its overloads, "mm.default" one."""
    for name in names:
        packet, _, overload = name.partition(".")
        packet = getattr(_aten, packet)
        for one in [overload] if overload else packet.overloads():
            yield getattr(packet, one)


def _name(value) -> str:
    function = value.function if isinstance(value, (Conditional, Since)) else value
    return getattr(function, "__qualname__", str(function))


def _caller() -> tuple[str, int]:
    """Returns file and line of the declaration: the innermost frame outside the functions that declare."""
    frame = sys._getframe(1)
    while frame.f_code.co_name in _DECLARING or frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


_DECLARING = frozenset({"register", "decomposition"})
"""Names of the functions that call `declare` for a line of another file, most of them inside decorators."""
