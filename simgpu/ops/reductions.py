"""Rules for reductions: conversions and copies before them, and the staging of each (`staging`)."""

import torch

from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.reduction_scratch import accumulator_of, reduce

HALVES = (torch.float16, torch.bfloat16)


def converted(call: OpCall, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns what is reduced to a result of `dtype`: the tensor itself, or scratch that it is converted into.

    Halves are converted to float32 as they are read (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction).
    """
    if tensor.dtype == dtype or (tensor.dtype in HALVES and dtype == torch.float32):
        return tensor
    call.scratch_like(tensor, dtype)
    return torch.empty_like(tensor, dtype=dtype)


def flat(call: OpCall, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor as one row, for a full reduction; allocates scratch for a copy if it cannot be viewed
    (`reshape`).
    """
    try:
        return tensor.view(-1)
    except RuntimeError:
        return contiguous(call, tensor)


def contiguous(call: OpCall, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor, in scratch unless it is `tensor`."""
    if tensor.is_contiguous():
        return tensor
    call.scratch_like(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


@rule("prod.default", "prod.dim_int")
def products(call: OpCall) -> None:
    """Rule of prod, which is that of sum.

    Its gradient is grad * result / self if no factor is 0, which CUDA checks, and otherwise what PyTorch computes here
    (torch/csrc/autograd/FunctionsManual.cpp, prod_backward).
    """
    if call["self"].requires_grad and torch.is_grad_enabled():
        call.machine.unmodeled.add(
            "the gradient of prod", "what it takes where no factor is 0, which only values tell", lower_bound=False
        )
    sums(call)


@rule("sum.default", "sum.dim_IntList", "sum.IntList_out", "mean.default", "mean.dim", "mean.out", "nansum.default")
def sums(call: OpCall) -> None:
    """Rule of ReduceSumProdKernel.cu and ReduceMomentKernel.cu.

    The kernel of prod is compiled at run time, which the oracle cannot do; it is configured as the others are.
    """
    output = call.allocate_output()
    tensor = converted(call, call["self"], output.dtype)
    reduce(call, tensor, call.get("dim"), accumulator_of(output.dtype), output.element_size())


@rule("hash_tensor.default")
def hashes(call: OpCall) -> None:
    """Rule of xor_sum_kernel_cuda: elements are read unconverted, and give one of 8 B (ReduceSumProdKernel.cu)."""
    output = call.allocate_output()
    reduce(call, call["self"], call["dim"], output.element_size(), output.element_size())


@rule("trace.default")
def trace(call: OpCall) -> None:
    """Rule of trace_cuda: the sum of the diagonal (aten/src/ATen/native/cuda/TriangularOps.cu)."""
    output = call.allocate_output()
    diagonal = converted(call, call["self"].diagonal(), output.dtype)
    reduce(call, diagonal, None, accumulator_of(output.dtype), output.element_size())


@rule("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def norms(call: OpCall) -> None:
    """Rule of linalg_vector_norm_out (aten/src/ATen/native/LinearAlgebra.cpp) and ReduceNormKernel.cu."""
    output = call.allocate_output()
    reduce_to_norms(call, call["self"], call["dim"], output.dtype)


def reduce_to_norms(call: OpCall, tensor: torch.Tensor, dims, dtype: torch.dtype) -> None:
    """Allocates the scratch of norms of `dtype` over some dims (None is all); those of single elements are absolute
    values.
    """
    reduced = range(tensor.dim()) if not dims else [dims] if isinstance(dims, int) else dims
    if tensor.numel() and (all(tensor.shape[dim] == 1 for dim in reduced) if tensor.dim() else not dims):
        if tensor.dtype != dtype:
            call.release(call.scratch_like(tensor, None if tensor.dtype.is_complex else dtype))
        return
    if not tensor.dtype.is_complex:
        tensor = converted(call, tensor, dtype)
    reduce(call, tensor, dims, accumulator_of(dtype), dtype.itemsize)


@rule("amax.default", "amin.default")
def extremes(call: OpCall) -> None:
    """Rule of ReduceMaxValuesKernel.cu: the accumulator is the element itself."""
    output = call.allocate_output()
    reduce(call, call["self"], call["dim"], output.element_size(), output.element_size())


@rule("any.default", "all.default", "any.dim", "all.dim", "any.dims", "all.dims")
def truths(call: OpCall) -> None:
    """Rule of allany_impl (ReduceOps.cpp) and ReduceLogicKernel.cu: one element is converted to bool."""
    output = call.allocate_output()
    tensor = call["self"]
    if tensor.numel() != 1:
        held = output if call.machine.torch_version >= (2, 12) else tensor  # the dtype of accumulators
        reduce(call, tensor, call.get("dim"), held.element_size(), output.element_size())
    elif tensor.dtype != torch.bool:
        call.scratch_like(output)


@rule("max.default", "min.default")
def extreme_of_all(call: OpCall) -> None:
    """Rule of max and min of all elements, of a contiguous tensor (aten/src/ATen/native/ReduceAllOps.cpp)."""
    output = call.allocate_output()
    tensor = contiguous(call, call["self"])
    reduce(call, tensor, None, output.element_size(), output.element_size())


@rule("aminmax.default")
def both_extremes(call: OpCall) -> None:
    """Rule of aminmax: an accumulator holds both (TensorCompare.cpp, cuda/ReduceAMinMaxKernel.cu)."""
    call.allocate_outputs(*call.outputs)
    tensor, dim = call["self", "dim"]
    if dim is None:
        tensor = contiguous(call, tensor)
    reduce(call, tensor, dim, 2 * tensor.element_size(), tensor.element_size())


@rule("argmax.default", "argmin.default")
def positions(call: OpCall) -> None:
    """Rule of ReduceArgMaxKernel.cu: the accumulator is a value with its index, 16 B."""
    output = call.allocate_output()
    tensor, dim = call["self", "dim"]
    reduce(call, flat(call, tensor) if dim is None else tensor, dim, 16, output.element_size())


@rule("max.dim", "min.dim")
def extremes_and_positions(call: OpCall) -> None:
    """Rule of ReduceMaxValuesKernel.cu with indices: the accumulator is a value with its index, 16 B."""
    values, indices = call.outputs
    call.allocate_outputs(values, indices)
    tensor, dim = call["self", "dim"]
    _lie_alike(values, indices, None if call["keepdim"] or not tensor.dim() else dim % tensor.dim())
    reduce(call, tensor, dim, 16, tensor.element_size())


def _lie_alike(first: torch.Tensor, second: torch.Tensor, dim: int | None) -> None:
    """Raises RuntimeError for two results with different strides, as `out=` may give them.

    `dim` is the dim that they lack, which the kernel has with stride 0 (aten/src/ATen/TensorIterator.cpp,
    TensorIterator::reduce_op).
    """
    strides = [list(one.stride()) for one in (first, second)]
    if strides[0] != strides[1]:
        if dim is not None:
            strides = [[*one[:dim], 0, *one[dim:]] for one in strides]
        raise RuntimeError(
            "reduce_op(): expected both outputs to have same strides, but output1 has "
            f"{strides[0]} and output2 has {strides[1]}"
        )


@rule("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def moments(call: OpCall) -> None:
    """Rule of ReduceMomentKernel.cu: the accumulator holds Welford's two moments and two counts, of 4 or 8 B each.

    For complex numbers the real and imaginary parts are reduced one after the other, and combined
    (aten/src/ATen/native/ReduceOps.cpp, std_var_out, std_var_mean_out).
    """
    tensor, dims = call["self", "dim"]
    if not tensor.dtype.is_complex:
        call.allocate_outputs(*call.outputs)
        _reduce_moments(call, tensor, dims)
        return
    parts = []
    for part in torch.view_as_real(tensor).unbind(-1):
        parts += [call.scratch(one.numel() * part.element_size()) for one in call.outputs]
        _reduce_moments(call, part, dims)
    call.allocate_outputs(*call.outputs)
    call.release(*reversed(parts))


def _reduce_moments(call: OpCall, tensor: torch.Tensor, dims) -> None:
    reduce(call, tensor, dims, 4 * max(4, tensor.element_size()), tensor.element_size())


@rule("renorm.default")
def renorm(call: OpCall) -> None:
    """Rule of renorm_out: the norms, for halves in float32, and then the factors (Normalization.cpp)."""
    call.allocate_output()
    tensor, dim = call["self", "dim"]
    dim %= tensor.dim()
    others = [i for i in range(tensor.dim()) if i != dim]
    norms = tensor.shape[dim]
    accumulator = torch.float32 if tensor.dtype in HALVES else tensor.dtype.to_real()
    call.scratch(norms * accumulator.itemsize)
    reduce_to_norms(call, tensor, others, accumulator)
    if accumulator != tensor.dtype:
        call.scratch(norms * tensor.element_size())


@rule("count_nonzero.default", "count_nonzero.dim_IntList")
def counts(call: OpCall) -> None:
    """Rule of count_nonzero_cuda: the sum of `tensor != 0` (aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    (output,) = call.outputs
    tensor = call["self"]
    if tensor.dtype != torch.bool:
        call.scratch_like(tensor, torch.bool)
        tensor = torch.empty_like(tensor, dtype=torch.bool)
    call.allocate_outputs(output)
    reduce(call, converted(call, tensor, torch.int64), call["dim"], 8, 8)
