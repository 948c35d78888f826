"""Matmuls by cuBLAS and CUTLASS, plain and grouped."""

import torch

from simgpu.checks.overlaps import refuse_within
from simgpu.checks.scalar_types import NAMES, not_implemented
from simgpu.ops.dispatcher import meta
from simgpu.ops.op_call import OpCall, decomposition, rule
from simgpu.storage import values
from simgpu.storage.layout import is_dense

# Rules for matmuls: cuBLAS's workspace, and copies of operands that cuBLAS cannot read.
# The rules are those of aten/src/ATen/native/cuda/Blas.cpp. cuBLAS is column-major. If the output is row-major,
# PyTorch requests the transposed matmul, which swaps the operands. An operand is then prepared: read as it is, or
# copied.

ROWS, COLUMNS = "rows", "columns"
decomposition("_trilinear.default")  # torch.bilinear: sumproduct_pair, aten/src/ATen/native/Linear.cpp


def _row_major(rows, columns, row_stride, column_stride) -> bool:
    return column_stride == 1 and row_stride >= max(1, columns)


def _column_major(rows, columns, row_stride, column_stride) -> bool:
    return row_stride == 1 and column_stride >= max(1, rows)


def _layout(matrix: torch.Tensor) -> str | None:
    """Returns ROWS or COLUMNS, as cuBLAS reads the matrix, or None if it is copied (to ROWS).

    (prepare_matrix_for_cublas)
    """
    if is_dense(matrix):
        return ROWS if matrix.is_contiguous() else COLUMNS
    layout = (*matrix.shape, *matrix.stride())
    return COLUMNS if _column_major(*layout) else ROWS if _row_major(*layout) else None


def _readable(matrix: torch.Tensor, transposed: bool) -> bool:
    """Returns whether cuBLAS reads a matrix as it is, for an output that is `transposed`.

    It can conjugate only what it also transposes, so a lazily conjugated matrix that need not be transposed is copied.
    """
    layout = _layout(matrix)
    return layout is not None and not (matrix.is_conj() and (layout == ROWS) == transposed)


def _batch_readable(batch: torch.Tensor, transposed: bool) -> bool:
    """Returns the same for a batch of matrices, 3-D (prepare_batch_matrix_for_cublas)."""
    (_, rows, columns), (_, row_stride, column_stride) = batch.shape, batch.stride()
    orders = (_row_major, _column_major) if transposed else (_column_major, _row_major)
    if orders[0](rows, columns, row_stride, column_stride):
        return not batch.is_conj()
    if orders[1](rows, columns, row_stride, column_stride):
        return True
    return batch.is_contiguous() and row_stride != 0 and column_stride != 0 and not (transposed and batch.is_conj())


# aten/src/ATen/native/cuda/Blas.cpp: AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2 with Half and BFloat16
_BY_LT = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_HALF = {torch.float16, torch.bfloat16}
TAKEN = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


def _check_supported(kernel: str, dtype: torch.dtype) -> None:
    if dtype not in TAKEN:
        not_implemented(kernel, dtype)


def check_same(left, right, batched: bool = False) -> None:
    """Raises PyTorch's RuntimeError for operands of two dtypes."""
    if left.dtype == right.dtype:
        return
    if batched:
        names = " but found ".join(NAMES[operand.dtype][1] for operand in (left, right))
        raise RuntimeError(f"expected scalar type {names}")
    names = " != ".join(NAMES[operand.dtype][0] for operand in (left, right))
    raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {names}")


def _gemm(call: OpCall, left, right, output, lt: bool = False) -> None:
    """Allocates as addmm_out_cuda_impl after the output: copies, the output's first, and the workspace."""
    check_same(left, right)
    if output.numel() == 0 or left.shape[1] == 0:
        return
    _check_supported("addmm_cuda", left.dtype)
    layout = _layout(output)
    transposed = layout != COLUMNS
    output_copy = call.scratch_like(output) if layout is None else None
    copies = [
        call.scratch_like(operand)
        for operand in ((right, left) if transposed else (left, right))
        if not _readable(operand, transposed)
    ]
    call.machine.take_blas_workspace(call.in_backward, lt)
    if layout is None:
        refuse_within(output)  # the copy_ back refuses it
    call.release(output_copy, *reversed(copies))


def _batched_gemm(call: OpCall, left, right, output) -> None:
    """Allocates as baddbmm_out_cuda_impl in the same way."""
    if output.numel() == 0 or left.shape[2] == 0:
        return
    _check_supported("baddbmm_cuda", left.dtype)
    check_same(left, right, batched=True)
    copies = []
    (_, rows, columns), (_, row_stride, column_stride) = output.shape, output.stride()
    transposed = False
    if not (row_stride == 1 and (columns == 1 or column_stride >= max(1, rows))):
        transposed = column_stride == 1 and (rows == 1 or row_stride >= max(1, columns))
        if not transposed:
            copies.append(call.scratch_like(output))
            refuse_within(output)  # the copy_ back refuses it
    for operand in (right, left) if transposed else (left, right):
        if not _batch_readable(operand, transposed):
            copies.append(call.scratch_like(operand))
    call.machine.take_blas_workspace(call.in_backward)
    call.release(*reversed(copies))


@rule("mm.default", "mm.out", "mm.dtype")
def product(call: OpCall) -> None:
    """Rule of mm_out_cuda_impl: the output, then what cuBLAS needs."""
    output = call.allocate_output()
    left, right = call["self", "mat2"]
    _gemm(call, left, right, output)


@rule(
    "addmm.default",
    "addmm.out",
    "addmm.dtype",
    "addmm.dtype_out",
    "addmm_.default",
    "_addmm_activation.default",
    "_addmm_activation.out",
)
def product_with_addend(call: OpCall) -> None:
    """Rule of addmm: the addend is first copied into the output, or cublasLt adds it as it writes (a 1-D bias)."""
    output = call.allocate_output()
    addend, left, right = call["self", "mat1", "mat2"]
    _gemm(call, left, right, output, _by_lt(call, call["beta"], addend, right, output))


def _by_lt(call: OpCall, beta, addend, right, output) -> bool:
    """Returns whether cuBLASLt multiplies, which adds a row of biases or applies an activation.

    (isInputCompliesAddmmCudaLt) In torch 2.15 it also adds a matrix of a half type that is not the output itself and is
    row-major. Memory depends on this only if cuBLASLt's workspace is separate from cuBLAS's: up to torch 2.11, and from
    2.15 on.
    """
    if not call.machine.lt_apart or right.dtype not in _BY_LT or min(right.shape) < 2 or not output.is_contiguous():
        return False
    if call.machine.torch_version >= (2, 15) and _is_matrix_for_lt(call, beta, addend, output):
        return True
    if beta != 1:
        return False
    one_row = addend.dim() == 1 or addend.squeeze().dim() == 1
    if one_row and addend.is_contiguous() and addend.shape[-1] == right.shape[1]:
        return True
    return addend.dim() == 2 and call.operator.name().startswith("aten::_addmm_activation")


def _is_matrix_for_lt(call: OpCall, beta, addend, output) -> bool:
    """Returns whether cuBLASLt adds a whole matrix, of more than one row and column, in torch 2.15."""
    return (
        output.dtype in _HALF
        and addend.shape == output.shape
        and min(addend.shape) > 1
        and addend is not output
        and _row_major(*addend.shape, *addend.stride())
        and beta != 0
        and call["alpha"] != 0
        and not call.operator.name().startswith("aten::_addmm_activation")
    )


@rule("bmm.default", "bmm.out", "bmm.dtype")
def batched_product(call: OpCall) -> None:
    """Rule of bmm_out_cuda_impl: the output, then what cuBLAS needs."""
    output = call.allocate_output()
    left, right = call["self", "mat2"]
    _batched_gemm(call, left, right, output)


@rule("baddbmm.default", "baddbmm.out", "baddbmm.dtype", "baddbmm.dtype_out", "baddbmm_.default")
def batched_product_with_addend(call: OpCall) -> None:
    """Rule of baddbmm_out_cuda_impl: the addend is first copied into the output."""
    output = call.allocate_output()
    left, right = call["batch1", "batch2"]
    _batched_gemm(call, left, right, output)


@rule("addbmm.default", "addbmm.out", "addbmm_.default")
def sum_of_products(call: OpCall) -> None:
    """Rule of addbmm_impl_: one addmm_ into the output per matrix of the batch.

    (aten/src/ATen/native/LinearAlgebra.cpp)
    """
    output = call.allocate_output()
    beta = call["beta"]
    for left, right in zip(*call["batch1", "batch2"], strict=True):
        _gemm(call, left, right, output, _by_lt(call, beta, output, right, output))
        beta = 1


def _matrix_times_vector(call: OpCall, matrix, vector, output) -> None:
    """Allocates as addmv_out_cuda: copies of a vector of stride 0, and of a matrix that is neither row- nor
    column-major.
    """
    if matrix.numel() == 0:
        return
    _check_supported("addmv_impl_cuda", matrix.dtype)
    copies = []
    if vector.stride(0) == 0 and not vector.is_contiguous():
        copies.append(call.scratch_like(vector))
    layout = (*matrix.shape, *matrix.stride())
    if not _column_major(*layout) and not _row_major(*layout) and not matrix.is_contiguous():
        copies.append(call.scratch_like(matrix))
    call.machine.take_blas_workspace(call.in_backward)
    call.release(*reversed(copies))


@decomposition("mv.out")
def matrix_times_vector_into(self, vec, *, out):
    """Decomposes mv_out into addmv_out with an addend that is not read (aten/src/ATen/native/Blas.cpp).

    The addend is the result itself if that has the right length.
    """
    addend = out
    if out.dim() > 1 or out.numel() != self.shape[0]:
        addend = torch.empty(self.shape[0], dtype=vec.dtype, device=vec.device)
    return torch.ops.aten.addmv.out(addend, self, vec, beta=0, alpha=1, out=out)


@rule("mv.default")
def matrix_times_vector(call: OpCall) -> None:
    """Rule of mv: the output, then what cuBLAS needs."""
    (output,) = call.outputs
    matrix, vector = call["self", "vec"]
    if matrix.dtype != vector.dtype:  # Blas.cpp, addmv's meta function, whose addend is an output in the vector's dtype
        call.scratch_like(output, vector.dtype)
        if call.machine.torch_version < (2, 12):
            _check_supported("addmv_impl_cuda", matrix.dtype)
            raise RuntimeError(f"expected scalar type {NAMES[matrix.dtype][1]} but found {NAMES[vector.dtype][1]}")
        names = f"{NAMES[vector.dtype][1]}, {NAMES[matrix.dtype][1]}, and {NAMES[vector.dtype][1]}"
        raise RuntimeError(f"addmv input tensors must have the same dtype, but got {names}")
    call.allocate_outputs(output)
    _matrix_times_vector(call, matrix, vector, output)


@rule("addmv.default", "addmv.out", "addmv_.default")
def matrix_times_vector_with_addend(call: OpCall) -> None:
    """Rule of addmv_out_cuda: the addend is first copied into the output."""
    output = call.allocate_output()
    matrix, vector = call["mat", "vec"]
    _matrix_times_vector(call, matrix, vector, output)


@rule("dot.default", "vdot.default")
def inner_product(call: OpCall) -> None:
    """Rule of dot_cuda and vdot_cuda: the output and cuBLAS's workspace."""
    call.allocate_outputs(*call.outputs)
    call.machine.take_blas_workspace(call.in_backward)


FLOAT8 = (8, 9)  # the first compute capability with matmuls of 8-bit floats
HOPPER = (9, 0)  # the only one whose cuBLASLt accepts a scale per row


@rule("_scaled_mm.default", "_scaled_mm.out")
def scaled_product(call: OpCall) -> None:
    """Rule of _scaled_mm_out_cuda: cuBLASLt, in cuBLAS's workspace (aten/src/ATen/native/cuda/ScaledBlas.cpp).

    With one scale per row, only Hopper uses cuBLASLt; other GPUs run a kernel of CUTLASS (RowwiseScaledMM.cu), whose
    workspace depends on its tiles and is not modelled.
    """
    capability = call.machine.spec.compute_capability
    if capability < FLOAT8:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
        )
    output = call.allocate_output()
    matrix, scale = call["self", "scale_a"]
    per_row = scale.dtype == torch.float32 and scale.shape == (matrix.shape[0], 1) != (1, 1)
    if output.numel() and per_row and capability != HOPPER:
        call.machine.unmodeled.add("torch._scaled_mm with a scale per row", "the workspace of CUTLASS's kernel")
    elif output.numel():
        call.machine.take_blas_workspace(call.in_backward, lt=True)


# Grouped matmuls, as in mixtures of experts: what CUDA accepts, the layout of the result, and what is allocated.
# PyTorch's meta kernel requires bfloat16, as on a GPU without the slower fallback. Source of the rule:
# aten/src/ATen/native/cuda/GroupedBlas.cpp.

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
