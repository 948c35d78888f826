"""Which overloads of ATen's operators run on the simulated GPU, and what it says that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from simgpu import unmodeled
from simgpu.device import machine as machines
from simgpu.dispatch.dispatch_mode import DispatchMode
from simgpu.op_info.arguments import tensors_in


@contextmanager
def operators_seen() -> Iterator[set[str]]:
    """Names like "aten::add.Tensor" of every operator that a simulated GPU is given inside the `with`: those that are
    made of others, and those others too. Operators on the host alone are none of them."""
    seen: set[str] = set()
    dispatch = DispatchMode.__torch_dispatch__

    def noting(self, operator, types, args=(), kwargs=None):
        result = dispatch(self, operator, types, args, kwargs)
        with torch._C.DisableTorchFunction():
            if any(one.is_meta for one in tensors_in((*args, *(kwargs or {}).values(), result))):
                seen.add(operator.name())
        return result

    with patch.object(DispatchMode, "__torch_dispatch__", noting):
        yield seen


@contextmanager
def told_anew() -> Iterator[unmodeled.Unmodeled]:
    """What is left out, and told by name, inside the `with`: that nobody has compared an operator is none of it."""
    machine = machines.on()
    outer, machine.unmodeled = machine.unmodeled, unmodeled.Unmodeled(machine.unmodeled.gpu)
    try:
        with patch.object(machine.unmodeled, "ran", lambda operator: None):
            yield machine.unmodeled
    finally:
        machine.unmodeled = outer
