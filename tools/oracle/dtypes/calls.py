"""Calls of ATen operators as JSON: tensors are shapes, strides, dtypes and where they are; values there are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KEPT = 30  # calls of an operator that differ in which arguments there are, or in their dtypes
DTYPES = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128", "complex32", "int64", "int32",
          "int16", "int8", "uint8", "bool")  # fmt: skip


def overload(name: str):
    """The OpOverload of a name like "aten::add.Tensor"."""
    packet, _, kind = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind or "default")


def packed(value):
    """A value as JSON. Raises TypeError for one of another kind."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise TypeError
        place = "host" if value.device.type == "cpu" else "cuda"
        return {"tensor": [list(value.shape), list(value.stride()), str(value.dtype)[6:], place]}
    if isinstance(value, (list, tuple)):
        return {"list": [packed(one) for one in value]}
    for kind, key in ((torch.dtype, "dtype"), (torch.layout, "layout"), (torch.memory_format, "format")):
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.Generator):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError


def unpacked(value):
    """The value of `packed`, on this process' "cuda"."""
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        shape, stride, dtype, place = held
        dtype = getattr(torch, dtype)
        if place == "host":
            return torch.zeros(shape, dtype=dtype)
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")
    if kind == "list":
        return [unpacked(one) for one in held]
    if kind == "complex":
        return complex(*held)
    return torch.device(held) if kind == "device" else getattr(torch, held)


def tensors(value) -> Iterator[list]:
    """The packed tensors in a packed value."""
    if isinstance(value, dict) and "tensor" in value:
        yield value["tensor"]
    elif isinstance(value, dict) and "list" in value:
        for one in value["list"]:
            yield from tensors(one)


def given(call: dict) -> list:
    """The packed arguments of a call, by position and then by name."""
    return [*call["args"], *(call["kwargs"][name] for name in sorted(call["kwargs"]))]


def all_tensors(call: dict) -> list[list]:
    """The packed tensors of a call."""
    return [one for value in given(call) for one in tensors(value)]


def pattern(call: dict) -> str:
    """What two calls have in common that differ in sizes and numbers alone."""

    def of(value):
        if not isinstance(value, dict):
            return type(value).__name__
        if "tensor" in value:
            shape, _, dtype, place = value["tensor"]
            return "tensor", bool(shape), dtype, place, 0 in shape
        return ("list", *sorted(set(map(str, map(of, value["list"]))))) if "list" in value else tuple(value)

    named = [(name, of(value)) for name, value in sorted(call["kwargs"].items())]
    return str((call["op"], [of(value) for value in call["args"]], named))


class Capture(TorchDispatchMode):
    """Keeps calls of ATen's operators as PyTorch's own code makes them: forward, backward and optimizers."""

    def __init__(self):
        super().__init__()
        self.calls: dict[str, dict] = {}
        self._of_operator: dict[str, int] = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if isinstance(operator, torch._ops.OpOverload) and operator.namespace == "aten":
            with suppress(TypeError):
                self._keep(operator.name(), args, kwargs)
        return operator(*args, **kwargs)

    def _keep(self, name: str, args, kwargs) -> None:
        named = {key: packed(value) for key, value in kwargs.items()}
        call = {"op": name, "args": [packed(one) for one in args], "kwargs": named}
        kind = pattern(call)
        if kind not in self.calls and self._of_operator.get(name, 0) < KEPT:
            self.calls[kind] = call
            self._of_operator[name] = self._of_operator.get(name, 0) + 1


def answer(call: dict) -> str:
    """ "ok", or "Type: message" of what this process' "cuda" raises of a call; "make" where it cannot be made."""
    try:
        args = [unpacked(one) for one in call["args"]]
        kwargs = {name: unpacked(one) for name, one in call["kwargs"].items()}
    except Exception:
        return "make"
    try:
        overload(call["op"])(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1500]
    return "ok"
