"""Computes the results of in-place operators that optimizers call on single tensors, and that have no C++ meta kernel.

If all operands are alike and floating point, and the written tensor has no gaps, the result is known: addcmul_,
addcdiv_ and lerp_ return the tensor that they wrote to, unchanged in shape (aten/src/ATen/native/PointwiseOps.cpp,
Lerp.cpp). Everything else is left to PyTorch, which raises the errors.
"""

import torch

from simgpu.storage.layout import is_dense

_aten = torch.ops.aten
OPERATORS = (_aten.addcmul_.default, _aten.addcdiv_.default, _aten.lerp_.Scalar, _aten.lerp_.Tensor)
_IDS = frozenset(map(id, OPERATORS))  # PyTorch computes an OpOverload's hash in Python
_NUMBERS = {int, float}


def result(operator, args, kwargs):
    """Returns the operator's result, or NotImplemented if PyTorch has to compute it."""
    if id(operator) not in _IDS or len(args) < 3 or not _plain(args[0]) or not is_dense(args[0]):
        return NotImplemented
    written = args[0]
    shape, dtype = written.shape, written.dtype
    for one in (*args[1:], *kwargs.values()):
        if type(one) in _NUMBERS:
            continue
        if not isinstance(one, torch.Tensor) or one.shape != shape or one.dtype != dtype or not _plain(one):
            return NotImplemented
    return written


def _plain(tensor) -> bool:
    return tensor.is_meta and tensor.dtype.is_floating_point and tensor.layout is torch.strided
