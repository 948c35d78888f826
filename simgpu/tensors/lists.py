"""Shapes of results of operators on lists of tensors (torch._foreach_*), where the lists are such as optimizers have.

PyTorch has no meta kernels for these: each tensor is given to the ordinary operator, in Python for some. Where the
tensors that stand side by side are alike, floating point and without gaps, there is nothing to find out: what is
written in place stays as it is, and a result is like its first operand (aten/src/ATen/native/ForeachUtils.h, the
fast route). All else is left to PyTorch.
"""

import torch

from simgpu.tensors.identity import once_for_each
from simgpu.tensors.layout import is_dense
from simgpu.tensors.overlaps import refuse_within

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_MORE = "add sub mul div maximum minimum clamp_min clamp_max pow addcdiv addcmul lerp zero"
_META = torch.device("meta")
_NAMES = {f"_foreach_{name}" for name in (*_UNARY.split(), *_MORE.split())}


_NUMBERS = {int, float}


@once_for_each
def _writes(operator) -> bool | None:
    """Whether an operator writes into its first list (True) or makes a new one (False); None for all others."""
    name, arguments = operator._schema.name.removeprefix("aten::"), operator._schema.arguments
    if name.removesuffix("_") not in _NAMES or str(arguments[0].type) != "List[Tensor]" or arguments[-1].is_out:
        return None
    numbers_in_tensor = arguments[-1].name == "scalars" and str(arguments[-1].type) == "Tensor"
    return None if numbers_in_tensor else name.endswith("_")


def _plain(tensors) -> bool:
    """Whether all are floating point, strided, and without values of their own."""
    kinds = {(one.dtype, one.layout, one.is_meta) for one in tensors}
    return all(dtype.is_floating_point and layout is torch.strided and is_meta for dtype, layout, is_meta in kinds)


def _is_number(value) -> bool:
    return type(value) in _NUMBERS


def _alike(tensors, lists, writes: bool) -> bool:
    """Whether what stands beside each of `tensors` changes nothing about it; for new results it has to lie the same."""
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
    """The lists of tensors beside the first; None if something stands there that is no such list, nor numbers."""
    lists = []
    for one in arguments:
        if type(one) in _NUMBERS:
            continue
        if isinstance(one, torch.Tensor):  # a factor for all
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
    """What the operator returns: new tensors, or None if it writes. NotImplemented where PyTorch is to be asked."""
    writes = _writes(operator)
    if writes is None or not args or not args[0]:
        return NotImplemented
    tensors = args[0]
    lists = _operands(tensors, (*args[1:], *kwargs.values()), writes)
    if lists is None or not _alike(tensors, lists, writes):
        if writes and operator._opname != "_foreach_zero_":
            for one in tensors:
                refuse_within(one)  # by the ordinary operators, one by one
        return NotImplemented
    if writes:
        return None
    return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=_META) for one in tensors]
