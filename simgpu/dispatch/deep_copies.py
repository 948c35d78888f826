"""Implements copy.deepcopy of tensors on the simulated GPU: the whole storage is copied, once for all of its views."""

import types

import torch

from simgpu.handlers import handles
from simgpu.storage import storage_map

_METHOD = torch.Tensor.__deepcopy__
# PyTorch's own method without its check for modes that handle the call as a whole, so that each inner call is seen.
_SEEN = types.FunctionType(
    _METHOD.__code__, {**_METHOD.__globals__, "has_torch_function_unary": lambda tensor: False}, _METHOD.__name__
)


@handles(_METHOD)
def deep_copy(mode, function, args, kwargs):
    if storage_map.of(args[0]) is None:
        return function(*args, **kwargs)
    with mode:
        return _SEEN(*args, **kwargs)
