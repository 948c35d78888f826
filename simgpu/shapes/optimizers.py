"""Computes result shapes of operators that optimizers call, on lists of tensors and in place."""

import torch

from simgpu.checks.overlaps import refuse_within
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.storage.layout import is_dense

# Computes the results of in-place operators that optimizers call on single tensors, and that have no C++ meta kernel.
# If all operands are alike and floating point, and the written tensor has no gaps, the result is known: addcmul_,
# addcdiv_ and lerp_ return the tensor that they wrote to, unchanged in shape (aten/src/ATen/native/PointwiseOps.cpp,
# Lerp.cpp). Everything else is left to PyTorch, which raises the errors.

_aten = torch.ops.aten
OPERATORS = (_aten.addcmul_.default, _aten.addcdiv_.default, _aten.lerp_.Scalar, _aten.lerp_.Tensor)
_IDS = frozenset(map(id, OPERATORS))  # PyTorch computes an OpOverload's hash in Python
_SINGLE_NUMBERS = {int, float}


def result(operator, args, kwargs):
    """Returns the operator's result, or NotImplemented if PyTorch has to compute it."""
    if id(operator) not in _IDS or len(args) < 3 or not _is_plain_call(args[0]) or not is_dense(args[0]):
        return NotImplemented
    written = args[0]
    shape, dtype = written.shape, written.dtype
    for one in (*args[1:], *kwargs.values()):
        if type(one) in _SINGLE_NUMBERS:
            continue
        if not isinstance(one, torch.Tensor) or one.shape != shape or one.dtype != dtype or not _is_plain_call(one):
            return NotImplemented
    return written


def _is_plain_call(tensor) -> bool:
    return tensor.is_meta and tensor.dtype.is_floating_point and tensor.layout is torch.strided


# Computes result shapes of operators on lists of tensors (torch._foreach_*), for lists such as optimizers use.
# PyTorch has no meta kernels for these: each tensor is passed to the ordinary operator, for some in Python. If
# corresponding tensors are alike, floating point and without gaps, the result is known. A tensor written in place
# stays as it is, and a new result is like its first operand (aten/src/ATen/native/ForeachUtils.h, the fast route).
# Everything else is left to PyTorch.

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_MORE = "add sub mul div maximum minimum clamp_min clamp_max pow addcdiv addcmul lerp zero"
_aten = torch.ops.aten
_META = torch.device("meta")
_NAMES = {f"_foreach_{name}" for name in (*_UNARY.split(), *_MORE.split())}


_NUMBERS = {int, float}


@per_op_cache
def _writes(operator) -> bool | None:
    """Returns whether an operator writes into its first list (True) or makes a new one (False); None for all others."""
    name, arguments = operator._schema.name.removeprefix("aten::"), operator._schema.arguments
    if name.removesuffix("_") not in _NAMES or str(arguments[0].type) != "List[Tensor]" or arguments[-1].is_out:
        return None
    numbers_in_tensor = arguments[-1].name == "scalars" and str(arguments[-1].type) == "Tensor"
    return None if numbers_in_tensor else name.endswith("_")


def increments_versions(operator) -> bool:
    """Returns whether CUDA's kernel increments the versions of the tensors that it writes, which autograd compares.

    All in-place operators on lists do so but three (aten/src/ATen/native/cuda/Foreach*.cu, `increment_version`).
    """
    name = operator._schema.name.removeprefix("aten::")
    written_without = operator in (
        _aten._foreach_zero_.default,
        _aten._foreach_lerp_.Scalar,
        _aten._foreach_lerp_.ScalarList,
    )
    return name.startswith("_foreach_") and name.endswith("_") and not written_without


def _plain(tensors) -> bool:
    """Returns whether all are floating point, strided meta tensors."""
    kinds = {(one.dtype, one.layout, one.is_meta) for one in tensors}
    return all(dtype.is_floating_point and layout is torch.strided and is_meta for dtype, layout, is_meta in kinds)


def _is_number(value) -> bool:
    return type(value) in _NUMBERS


def _alike(tensors, lists, writes: bool) -> bool:
    """Returns whether the other operands leave each of `tensors` as it is; for new results they need the same
    layout.
    """
    if not _plain(tensors) or not all(map(is_dense, tensors)):
        return False
    shapes = [one.shape for one in tensors]
    if not all(_plain(others) and [one.shape for one in others] == shapes for others in lists):
        return False
    if writes:
        return True
    lies = [(one.dtype, one.stride()) for one in tensors]
    return all([(one.dtype, one.stride()) for one in others] == lies for others in lists)


def _operands(tensors, arguments, writes: bool) -> list | None:
    """Returns the lists of tensors after the first, or None if an argument is neither such a list nor numbers."""
    lists = []
    for one in arguments:
        if type(one) in _NUMBERS:
            continue
        if isinstance(one, torch.Tensor):  # one factor for all tensors
            if one.dim() or not _plain([one]) or not (writes or all(one.dtype == to.dtype for to in tensors)):
                return None
        elif not isinstance(one, (list, tuple)) or len(one) != len(tensors):
            return None
        elif isinstance(one[0], torch.Tensor):
            lists.append(one)
        elif not all(map(_is_number, one)):
            return None
    return lists


def results(operator, args, kwargs):
    """Returns the operator's result: new tensors, or None if it writes; NotImplemented if PyTorch has to compute it."""
    writes = _writes(operator)
    if writes is None or not args or not args[0]:
        return NotImplemented
    tensors = args[0]
    lists = _operands(tensors, (*args[1:], *kwargs.values()), writes)
    if lists is None or not _alike(tensors, lists, writes):
        if writes and operator._opname != "_foreach_zero_":
            for one in tensors:
                refuse_within(one)  # as the ordinary operators do one by one
        return NotImplemented
    if writes:
        return None
    return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=_META) for one in tensors]
