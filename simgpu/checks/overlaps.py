"""Refuses calls that write a memory location more than once, or read what they write, as PyTorch does.

Source: aten/src/ATen/MemoryOverlap.cpp. PyTorch's own meta kernels make this check if they are C++ and the operator is
structured. This module covers the others. Which operators make which check was found with the oracle.
"""

from typing import NamedTuple

import torch

from simgpu.op_info import arguments
from simgpu.op_info.per_op_cache import per_op_cache
from simgpu.storage.layout import is_dense

_WAY_OUT = "Please clone() the tensor before performing the operation."
_WITHIN = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    f"{_WAY_OUT}"
)
_BETWEEN = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
    f"location. {_WAY_OUT}"
)
NO, PARTIAL, FULL = "no", "partial", "full"

# Names of operators, in place and with out=, or of one overload ("addmm.out"). For these only the written tensors are
# checked (assert_no_internal_overlap; TensorIterator::nullary_op).
_ALONE = """
    arange bernoulli bucketize cauchy cholesky_inverse cholesky_solve cummax cummin exponential geometric histc linspace
    log_normal logspace masked_scatter mvlgamma normal random randperm range searchsorted _log_softmax _softmax
"""
# For these also the tensor that is copied into it (copy_), unless it is the same one.
_COPIED = """
    addmm.out addmv.out baddbmm.out copy index_add.out index_copy.out index_reduce.out scatter.src_out scatter.value_out
    scatter_add.out scatter_reduce.two_out
"""
# For these also the inputs, which may coincide with the written tensor (TensorIteratorBase::compute_mem_overlaps).
_WITH_INPUTS = """
    abs addbmm addr angle bitwise_not complex conj_physical.out floor_divide frexp hardswish hardtanh linalg_cross
    log_sigmoid_forward logical_and logical_not logical_or logical_xor logit nan_to_num polar polygamma relu renorm
    rrelu_with_noise sort special_ndtr special_polygamma where
"""
# For these also the inputs, which may share nothing with it (assert_no_overlap).
_APART = "index_select kthvalue put stack take"


class Check(NamedTuple):
    """The check of a call: the names of written and of read arguments, and how they may overlap.

    `within` says that a written tensor may not overlap itself. `copies` says that there is no check if the read tensor
    is the written one.
    """

    written: tuple[str, ...]
    read: tuple[str, ...]
    allowed: tuple[str, ...]
    within: bool = True
    copies: bool = False


def _table() -> dict[str, tuple]:
    found = dict.fromkeys(_ALONE.split(), ())
    found |= dict.fromkeys([*_COPIED.split(), *_WITH_INPUTS.split()], (NO, FULL))
    return found | dict.fromkeys(_APART.split(), (NO,))


_ALLOWED = _table()


@per_op_cache
def check_of(operator) -> Check | None:
    """Returns the check that PyTorch's CUDA code makes for an OpOverload and its meta kernel does not, or None."""
    if getattr(operator, "namespace", None) != "aten":
        return None
    name, overload = operator._opname.removesuffix("_"), f"{operator._opname}.{operator._overloadname}"
    allowed = _ALLOWED.get(name, _ALLOWED.get(overload))
    given = [one for one in operator._schema.arguments if "Tensor" in str(one.type)]
    written = tuple(one.name for one in given if one.alias_info is not None and one.alias_info.is_write)
    if allowed is None or not written:
        return None
    read = tuple(one.name for one in given if one.name not in written) if allowed else ()
    copies = name in _COPIED.split() or overload in _COPIED.split()
    return Check(written, read[:1] if copies else read, allowed, name != "kthvalue", copies)


def check(asked: Check, operator, args: tuple, kwargs: dict) -> None:
    """Raises PyTorch's RuntimeError for a call whose written memory overlaps in a forbidden way."""
    for name in asked.written:
        written = arguments.given(operator, name, args, kwargs)
        if not isinstance(written, torch.Tensor):
            continue
        if asked.copies and arguments.given(operator, asked.read[0], args, kwargs) is written:
            continue
        if asked.within:
            refuse_within(written)
        for other in asked.read:
            refuse_between(written, arguments.given(operator, other, args, kwargs), asked.allowed)


def refuse_within(written: torch.Tensor) -> None:
    """Raises RuntimeError for a tensor in which an element occurs several times, as expand() makes them.

    (assert_no_internal_overlap)
    """
    if written.is_contiguous() or is_dense(written):
        return
    if any(stride == 0 and size > 1 for size, stride in zip(written.shape, written.stride(), strict=True)):
        raise RuntimeError(_WITHIN)


def refuse_between(written: torch.Tensor, read, allowed: tuple[str, ...] = (NO, FULL)) -> None:
    """Raises RuntimeError for a forbidden overlap: assert_no_partial_overlap, or assert_no_overlap if FULL is not
    `allowed`.

    `read` is a tensor, a list of tensors, or anything else, which is ignored.
    """
    for one in read if isinstance(read, (list, tuple)) else (read,):
        if isinstance(one, torch.Tensor) and one.is_meta and _status(written, one) not in allowed:
            raise RuntimeError(_BETWEEN)


def _status(first: torch.Tensor, second: torch.Tensor) -> str:
    """Returns the overlap of two tensors like get_overlap_status, which ignores tensors with gaps."""
    if first is second:
        return FULL
    if first.untyped_storage()._cdata != second.untyped_storage()._cdata or not first.numel() or not second.numel():
        return NO
    if not is_dense(first) or not is_dense(second):
        return NO
    (begin, end), (other_begin, other_end) = _extent(first), _extent(second)
    if (begin, end) == (other_begin, other_end):
        return FULL if first.stride() == second.stride() else PARTIAL
    return PARTIAL if begin < other_end and other_begin < end else NO


def _extent(dense: torch.Tensor) -> tuple[int, int]:
    """Returns a tensor's first byte in its storage, and the one after its last."""
    begin = int(dense.storage_offset()) * dense.element_size()
    return begin, begin + dense.numel() * dense.element_size()
