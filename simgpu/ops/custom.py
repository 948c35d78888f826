"""Handles operators that a program or a library defines.

For operators defined in Python with torch.library.custom_op, the Python function runs on a GPU, and the operators that
it calls allocate memory. PyTorch would run the function that was registered for meta tensors, which makes only the
results. For all others only the results are known, from a kernel for meta tensors.
"""

from functools import cache
from typing import Any

from torch._library import custom_ops, fake_impl, simple_registry

from simgpu.device import machine as machines
from simgpu.errors import NotModelledError, NoValueError
from simgpu.unmodeled import UNCOMPARED


@cache
def function_of(operator):
    """Returns the function that CUDA calls for an OpOverload defined with custom_op for any device, or None.

    It is None if there is a function for CUDA alone, which may start kernels of its own, and for any other operator.
    """
    made = custom_ops._maybe_get_opdef(operator)
    if made is None or set(made._backend_fns) != {None}:
        return None

    def function(*args, **kwargs):
        try:
            return made._backend_fns[None](*args, **kwargs)
        except (NotModelledError, NoValueError):
            if made._abstract_fn is None:
                raise
        machines.on().unmodeled.add(operator.name(), UNCOMPARED)
        found = smallest(operator, args, kwargs)
        return made._abstract_fn(*args, **kwargs) if found is None else found

    return function


def is_of_library(operator) -> bool:
    """Returns whether an OpOverload is not PyTorch's own, and returns results without writing to its arguments."""
    if operator.namespace in ("aten", "prims", "prim", "c10d", "_c10d_functional", "fsdp"):
        return False
    return all(one.alias_info is None for one in (*operator._schema.arguments, *operator._schema.returns))


def has_fake(operator) -> bool:
    """Returns whether a fake kernel was registered for an OpOverload (torch.library.register_fake)."""
    return operator.namespace != "aten" and _fake_of(operator) is not None


def _fake_of(operator) -> Any:
    return simple_registry.singleton.find(operator.name()).fake_impl.kernel


class _Sizes:
    """Provides a fake kernel with the smallest sizes, where sizes depend on values (torch.library.get_ctx)."""

    asked = False

    def new_dynamic_size(self, *, min=0, max=None) -> int:
        self.asked = True
        return min

    def create_unbacked_symint(self, *, min=2, max=None) -> int:
        """Returns the size under its older name, where 2 only says that torch.compile does not specialise on 0 or 1."""
        return self.new_dynamic_size(min=0 if min == 2 else min)


def smallest(operator, args, kwargs):
    """Returns a fake kernel's result with the smallest size wherever it depends on values.

    Returns None if no size does, or if the kernel fails for a different reason.
    """
    sizes = _Sizes()
    with fake_impl.set_ctx_getter(lambda: sizes):
        try:
            found = _fake_of(operator)(*args, **kwargs)
        except RuntimeError:
            return None
    return found if sizes.asked else None
