"""Operators that a program makes itself, in Python: torch.library.custom_op.

On a GPU their Python function runs, and the operators that it calls take the memory. PyTorch would run the function
that the program has given for meta tensors, which makes results and nothing beside.
"""

from functools import cache

from torch._library import custom_ops

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
        return made._abstract_fn(*args, **kwargs)

    return function
