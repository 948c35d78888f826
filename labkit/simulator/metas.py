"""Shapes and strides of an operator's results, from PyTorch's meta kernels.

Since 2.13 at the latest, PyTorch computes most of them in Python (torch/_meta_registrations.py, from torch._refs).
There a pointwise operator on half-precision operands converts them first, which makes an expanded operand a dense one
with an order of dims of its own, and the result may lie otherwise than CUDA's. PyTorch's C++ knows better.
"""

from functools import cache

import torch

_HALVES = (torch.float16, torch.bfloat16)
_NATIVE = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


@cache
def _is_structured_pointwise(operator) -> bool:
    """Whether C++ computes the result's shape and strides apart from its values, which _NATIVE then asks for."""
    return torch.Tag.pointwise in operator.tags and torch._C._dispatch_has_kernel_for_dispatch_key(
        operator.name(), "CompositeExplicitAutogradNonFunctional"
    )


def _is_expanded(tensor) -> bool:
    return tensor.dtype in _HALVES and tensor.numel() > 1 and 0 in tensor.stride()


def run(operator, args, kwargs):
    """The operator's result on meta tensors."""
    if _is_structured_pointwise(operator):
        tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
        if len(tensors) > 1 and any(map(_is_expanded, tensors)):
            return operator._op_dk(_NATIVE, *args, **kwargs)
    return operator(*args, **kwargs)
