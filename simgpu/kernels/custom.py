"""Operators that a program or a library makes itself.

Of those that are made in Python, with torch.library.custom_op, the Python function runs on a GPU, and the operators
that it calls allocate memory. PyTorch would run the function that was registered for meta tensors, which makes the
results and nothing else. Of all others only the results are known, from a kernel for meta tensors.
"""

from functools import cache
from typing import Any

from torch._library import custom_ops, fake_impl, simple_registry

from simgpu import machine as machines
from simgpu.errors import NotModelledError, NoValueError
from simgpu.left_out import UNCOMPARED


@cache
def function_of(operator):
    """What CUDA calls for an OpOverload that was made with custom_op for any device: a function of its arguments. None
    if it has a function for CUDA alone, which may start kernels of its own, or is no such operator."""
    made = custom_ops._maybe_get_opdef(operator)
    if made is None or set(made._backend_fns) != {None}:
        return None

    def function(*args, **kwargs):
        try:
            return made._backend_fns[None](*args, **kwargs)
        except (NotModelledError, NoValueError):
            if made._abstract_fn is None:
                raise
        machines.on().left_out.add(operator.name(), UNCOMPARED)
        found = smallest(operator, args, kwargs)
        return made._abstract_fn(*args, **kwargs) if found is None else found

    return function


def is_of_library(operator) -> bool:
    """Whether an OpOverload is not PyTorch's own, and returns results without writing to its arguments."""
    if operator.namespace in ("aten", "prims", "prim", "c10d", "_c10d_functional", "fsdp"):
        return False
    return all(one.alias_info is None for one in (*operator._schema.arguments, *operator._schema.returns))


def has_fake(operator) -> bool:
    """Whether a fake kernel was registered for an OpOverload (torch.library.register_fake)."""
    return operator.namespace != "aten" and _fake_of(operator) is not None


def _fake_of(operator) -> Any:
    return simple_registry.singleton.find(operator.name()).fake_impl.kernel


class _Sizes:
    """What a fake kernel asks for sizes that depend on values (torch.library.get_ctx): it gets the smallest ones."""

    asked = False

    def new_dynamic_size(self, *, min=0, max=None) -> int:
        self.asked = True
        return min

    def create_unbacked_symint(self, *, min=2, max=None) -> int:
        """The older name, of which 2 only says that torch.compile takes neither 0 nor 1 for granted."""
        return self.new_dynamic_size(min=0 if min == 2 else min)


def smallest(operator, args, kwargs):
    """What a fake kernel returns if each size that depends on values is the smallest possible one. None if it asks for
    none, or if it fails for another reason."""
    sizes = _Sizes()
    with fake_impl.set_ctx_getter(lambda: sizes):
        try:
            found = _fake_of(operator)(*args, **kwargs)
        except RuntimeError:
            return None
    return found if sizes.asked else None
