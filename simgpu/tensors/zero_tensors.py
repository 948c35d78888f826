"""Sums and products of ZeroTensors, which forward-mode derivatives are made of where a tangent is absent.

aten/src/ATen/native/BinaryOps.cpp (add_zerotensor and its like) finds the result's shape and dtype by the operator's
meta kernel, on `self.to("meta")`. That copy of a CUDA tensor takes nothing, but a simulated tensor is copied to itself,
and the meta kernel in Python would take memory for it. Here PyTorch's rules of broadcasting and promotion do the same.
"""

import warnings
from functools import wraps

import torch

from simgpu.tensors import registry, residence

_aten = torch.ops.aten


def _is_here(operand) -> bool:
    """Whether it is a simulated tensor; a number may stand in the place of one."""
    return isinstance(operand, torch.Tensor) and residence.on_current(operand)


def _is_zero(operand) -> bool:
    return isinstance(operand, torch.Tensor) and operand._is_zerotensor()


def _meta_of(*operands) -> None:
    """What `to("meta")` takes of each operand: a ZeroTensor is made a tensor of one element first, and let go."""
    for operand in operands:
        if _is_zero(operand) and _is_here(operand):
            torch.zeros((), dtype=operand.dtype, device=operand.device)


def _typed(operand):
    """What has a ZeroTensor's part in type promotion: any operator but a few would make a tensor of itself of it."""
    return torch.empty((0,) * operand.dim(), dtype=operand.dtype, device="cpu") if _is_zero(operand) else operand


def _frame(one, other):
    """Shape, dtype and device of the result."""
    device = one.device if _is_here(one) else other.device
    shapes = (operand.shape for operand in (one, other) if isinstance(operand, torch.Tensor))
    return torch.broadcast_shapes(*shapes), torch.result_type(_typed(one), _typed(other)), device


def _copied(operand, shape, dtype, device) -> torch.Tensor:
    if not isinstance(operand, torch.Tensor):
        return torch.full(shape, operand, dtype=dtype, device=device)
    return _aten._to_copy.default(operand.expand(shape), dtype=dtype, device=device)


def _zeros(shape, dtype, device) -> torch.Tensor:
    return _aten._efficientzerotensor.default(list(shape), dtype=dtype, device=device)


def _sum(one, other, *, alpha=1) -> torch.Tensor:
    """A copy of the operand that is not zero, or zeros."""
    shape, dtype, device = _frame(one, other)
    _meta_of(one, other)
    if not _is_zero(one):
        return _copied(one, shape, dtype, device)
    if _is_zero(other):
        return _zeros(shape, dtype, device)
    copy = _copied(other, shape, dtype, device)
    return copy if alpha == 1 else copy.mul(alpha)


def _difference(one, other, *, alpha=1) -> torch.Tensor:
    return _sum(one, other, alpha=-alpha)


def _product(one, other) -> torch.Tensor:
    frame = _frame(one, other)
    _meta_of(one, other)
    return _zeros(*frame)


def _quotient(one, other) -> torch.Tensor:
    """Zeros, or where zero divides, a tensor full of infinity or of NaN."""
    shape, dtype, device = _frame(one, other)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    _meta_of(one, other)
    if not _is_zero(other):
        return _zeros(shape, dtype, device)
    value = float("nan") if _is_zero(one) else float("inf")
    return torch.full(shape, value, dtype=dtype, device=device)


KERNELS = {
    _aten.add.Tensor: _sum,
    _aten.sub.Tensor: _difference,
    _aten.mul.Tensor: _product,
    _aten.div.Tensor: _quotient,
}


def register() -> None:
    """For `registry.hold`: while a simulated GPU is on. Other devices have PyTorch's own kernel."""
    if not hasattr(torch.library, "get_kernel"):
        return
    library = registry.library("ZeroTensor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # a kernel is replaced
        for operator, function in KERNELS.items():
            library.impl(operator, _here(function, torch.library.get_kernel(operator, "ZeroTensor")))


def _here(function, elsewhere):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor)

    @wraps(function)
    def kernel(one, other, **kwargs):
        with torch._C.DisableTorchFunction():
            if _is_here(one) or _is_here(other):
                return function(one, other, **kwargs)
        return elsewhere.call_boxed(keys, one, other, **kwargs)

    return kernel
