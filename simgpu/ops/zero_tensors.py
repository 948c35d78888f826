"""Computes sums and products of ZeroTensors, which forward-mode derivatives use if a tangent is absent.

aten/src/ATen/native/BinaryOps.cpp (add_zerotensor and similar) finds the result's shape and dtype with the operator's
meta kernel, on `self.to("meta")`. That copy of a CUDA tensor allocates nothing, but a simulated tensor would be copied
to itself, and the Python meta kernel would allocate memory for it. So this module applies PyTorch's rules of
broadcasting and promotion directly.
"""

import warnings
from functools import wraps

import torch

from simgpu.op_info.op_spec import mark, specs
from simgpu.ops import dispatcher
from simgpu.storage import storage_map

_aten = torch.ops.aten


def _is_here(operand) -> bool:
    """Returns whether an operand is a simulated tensor; it may be a number."""
    return isinstance(operand, torch.Tensor) and storage_map.on_current(operand)


def _is_zero(operand) -> bool:
    return isinstance(operand, torch.Tensor) and operand._is_zerotensor()


def _meta_of(*operands) -> None:
    """Allocates what `to("meta")` allocates for each operand: a ZeroTensor first becomes a one-element tensor, then
    freed.
    """
    for operand in operands:
        if _is_zero(operand) and _is_here(operand):
            torch.zeros((), dtype=operand.dtype, device=operand.device)


def _typed(operand):
    """Returns an operand with a ZeroTensor's type promotion, because most operators would materialise the
    ZeroTensor.
    """
    return torch.empty((0,) * operand.dim(), dtype=operand.dtype, device="cpu") if _is_zero(operand) else operand


def _frame(one, other):
    """Returns shape, dtype and device of the result."""
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
    """Returns a copy of the operand that is not zero, or zeros."""
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
    """Returns zeros, or for a zero divisor, a tensor full of infinity or of NaN."""
    shape, dtype, device = _frame(one, other)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    _meta_of(one, other)
    if not _is_zero(other):
        return _zeros(shape, dtype, device)
    value = float("nan") if _is_zero(one) else float("inf")
    return torch.full(shape, value, dtype=dtype, device=device)


mark("add.Tensor", zero_tensor=_sum)
mark("sub.Tensor", zero_tensor=_difference)
mark("mul.Tensor", zero_tensor=_product)
mark("div.Tensor", zero_tensor=_quotient)


def register() -> None:
    """Registers the kernels through `dispatcher.hold`, while a simulated GPU is on. Other devices use PyTorch's
    kernel.
    """
    if not hasattr(torch.library, "get_kernel"):
        return
    library = dispatcher.library("ZeroTensor")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # a kernel is replaced
        for one in specs():
            if one.zero_tensor is not None:
                elsewhere = torch.library.get_kernel(one.operator, "ZeroTensor")
                library.impl(one.operator, _here(one.zero_tensor, elsewhere))


def _here(function, elsewhere):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor)

    @wraps(function)
    def kernel(one, other, **kwargs):
        with torch._C.DisableTorchFunction():
            if _is_here(one) or _is_here(other):
                return function(one, other, **kwargs)
        return elsewhere.call_boxed(keys, one, other, **kwargs)

    return kernel
