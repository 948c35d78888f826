"""Grouped matmuls, as in mixtures of experts: what CUDA accepts, the layout of the result, and what is allocated.

PyTorch's meta kernel requires bfloat16, as on a GPU without the slower fallback. Source of the rule:
aten/src/ATen/native/cuda/GroupedBlas.cpp.
"""

import torch

from simgpu.ops.dispatcher import meta
from simgpu.ops.gemm import check_same
from simgpu.ops.op_call import OpCall, rule
from simgpu.storage import values

ALIGNMENT = 16  # bytes
_NAMES = {torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"}


def _check(condition, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _check_strides(matrix) -> None:
    """Raises RuntimeError if a matrix is not aligned to 16 bytes.

    (aten/src/ATen/native/GroupedMMUtils.h, check_valid_strides_and_return_transposed)
    """
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    step = ALIGNMENT // matrix.element_size()
    for one, other, size in ((down, across, rows), (across, down, columns)):
        if one == 1 and other >= max(1, size):
            _check(other % step == 0, "strides should be multiple of 16 bytes")
            return
    _check(False, f"Invalid strides/sizes, got {list(matrix.stride())} for strides and {list(matrix.shape)} for sizes")


def _validate(left, right, ends, bias) -> None:
    """Raises RuntimeError for dtypes, dims and offsets that CUDA refuses (GroupedMMUtils.h,
    _grouped_mm_validate_inputs).
    """
    for name, matrix in (("mat_a", left), ("mat_b", right)):
        accepted = matrix.dtype in (torch.bfloat16, torch.float32, torch.float16)
        found = _NAMES.get(matrix.dtype, str(matrix.dtype).removeprefix("torch."))
        _check(accepted, f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {found}")
    for name, matrix in (("mat_a", left), ("mat_b", right)):
        _check(matrix.dim() in (2, 3), f"{name} has to be 2 or 3d")
    flat = left.dim() == 2, right.dim() == 2
    _check(all(flat) or left.shape[-1] == right.shape[-2], "contraction dimension of mat_a and mat_b must match")
    _check_strides(left)
    _check_strides(right)
    needed = "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
    _check((ends is not None) == any(flat), needed)
    if ends is not None:
        _check(ends.dim() == 1, "offs has to be 1D")
        _check(ends.dtype == torch.int32, "Offsets have to be int32")
    _check(bias is None, "Bias not supported yet")


@meta("_grouped_mm")
def grouped_mm(left, right, offs=None, bias=None, out_dtype=None):
    """Returns the output, whose rows start at multiples of 16 bytes.

    (GroupedMMUtils.h, create_grouped_gemm_output_tensor)
    """
    _validate(left, right, offs, bias)
    dtype = out_dtype or left.dtype
    _check(dtype == left.dtype, "Grouped gemm output dtype must match `mat_a` dtype")
    if left.dim() == 3:
        batch = left.shape[0]
        given = right.shape[0] if right.dim() == 3 else offs.shape[0]  # pyright: ignore[reportOptionalMemberAccess]
    else:
        given = batch = offs.shape[0]  # pyright: ignore[reportOptionalMemberAccess]
        if right.dim() == 3:
            batch = right.shape[0]
    _check(given == batch, "matrix batch sizes have to match")
    rows, columns = left.shape[-2], right.shape[-1]
    step = ALIGNMENT // dtype.itemsize
    padded = -(-columns // step) * step
    if left.dim() != right.dim():
        return torch.empty_strided((rows, columns), (padded, 1), dtype=dtype, device="meta")
    shape, strides = (batch, rows, columns), (rows * padded, padded, 1)
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


POINTER, STRIDE, SHAPE = 8, 8, 12  # bytes that CUTLASS stores per operand and per problem
DESCRIPTORS = 512  # bytes of CUTLASS's workspace per multiprocessor: its TMA descriptors


def _fast(call: OpCall) -> bool:
    """Returns whether CUTLASS's single kernel computes it, for compute capability 9.0 to 10.x."""
    operands = (*call["self", "mat2"], *call.outputs)
    return call.machine.spec.compute_capability[0] in (9, 10) and all(t.dtype == torch.bfloat16 for t in operands)


@rule("_grouped_mm.default")
def grouped_product(call: OpCall) -> None:
    """Rule of _grouped_mm_cuda: CUTLASS's kernel with its arguments on the device, or one matmul per group."""
    output = call.allocate_output()
    left, right, ends = call["self", "mat2", "offs"]
    if _fast(call):
        groups = left.shape[0] if ends is None else ends.shape[0]
        _arguments(call, groups)
        return
    check_same(left, right, batched=left.dim() == right.dim() == 3)
    if output.numel() and left.shape[-1] and (ends is None or not _all_empty(ends)):
        call.machine.take_blas_workspace(call.in_backward)


def _arguments(call: OpCall, groups: int) -> None:
    """Allocates the arguments of bf16bf16_grouped_gemm_impl, then CUTLASS's workspace.

    The arguments are pointers of three operands, aligned to 16 B, strides, and shapes
    (aten/src/ATen/native/cuda/GroupMM.cu).
    """
    call.scratch((groups + groups % 2) * 3 * POINTER + groups * (SHAPE + 3 * STRIDE))
    call.scratch(call.machine.spec.multiprocessors * DESCRIPTORS)


def _all_empty(ends) -> bool:
    """Returns whether it is known that no group has rows, so that there is no matmul at all."""
    known = values.of(ends)
    return known is not None and not known.any()
