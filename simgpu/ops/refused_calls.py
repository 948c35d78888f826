"""Refuses calls as CUDA's code does, by numbers, shapes and dtypes that meta kernels accept."""

import torch

from simgpu.checks.scalar_types import name, not_implemented, read_as
from simgpu.op_info import arguments
from simgpu.ops.op_call import OpCall, refuses, rule

# Refuses calls as CUDA's code does before it allocates, by numbers or by shapes that meta kernels accept.

WITH_BOOL = (
    "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
    "`~` or `logical_not()` operator instead."
)


@refuses("max.default", "min.default")
def extreme_of_nothing(operator, args: tuple, kwargs: dict) -> None:
    """Refuses max and min of an empty tensor (aten/src/ATen/native/ReduceAllOps.cpp)."""
    if not args[0].numel():
        raise RuntimeError(
            f"{operator._opname}(): Expected reduction dim to be specified for input.numel() == 0. Specify the "
            "reduction dim with the 'dim' argument."
        )


@refuses("median.dim", "median.dim_values", "nanmedian.dim", "nanmedian.dim_values", "mode.default", "mode.values")
@refuses("kthvalue.default", "kthvalue.values")
def along_an_empty_dim(operator, args: tuple, kwargs: dict) -> None:
    """Refuses reductions along an empty dim (aten/src/ATen/native/ReduceOpsUtils.h, zero_numel_check_dims)."""
    tensor = args[0]
    if tensor.numel():
        return
    dim = arguments.given(operator, "dim", args, kwargs)
    if -tensor.dim() <= dim < tensor.dim() and not tensor.shape[dim]:
        raise IndexError(
            f"{operator._opname.removeprefix('nan')}(): Expected reduction dim {dim % tensor.dim()} to have non-zero "
            "size."
        )


@refuses("sub", "sub_", "rsub")
def number_that_is_a_bool(operator, args: tuple, kwargs: dict) -> None:
    """Refuses subtraction with a bool (aten/src/ATen/native/BinaryOps.h, sub_check).

    The meta kernel refuses two bool tensors, but does not check a Python bool.
    """
    if len(args) > 1 and (type(args[1]) is bool or type(args[0]) is bool):
        tensor = args[0] if type(args[1]) is bool else args[1]
        if isinstance(tensor, torch.Tensor) and tensor.dtype != torch.bool:
            raise RuntimeError(WITH_BOOL)


@refuses("abs.out", "conj_physical.out")
def result_of_the_same_dtype(operator, args: tuple, kwargs: dict) -> None:
    """Refuses an out= of a different dtype, which TensorIterator::unary_op requires to be the same.

    The result for complex numbers' absolute values is cast (aten/src/ATen/native/UnaryOps.cpp, unary_op_impl_out).
    """
    tensor, out = args[0], kwargs["out"]
    if operator is torch.ops.aten.abs.out and tensor.is_complex():
        if not out.is_complex():
            _cast(tensor.dtype.to_real(), out.dtype)
    elif tensor.dtype != out.dtype:
        raise RuntimeError(f"Found dtype {name(out.dtype)} but expected {name(tensor.dtype)}")


@refuses("nan_to_num.out")
def result_without_nan(operator, args: tuple, kwargs: dict) -> None:
    """Refuses nan_to_num with an out= of a different dtype (aten/src/ATen/native/UnaryOps.cpp, nan_to_num_out)."""
    tensor, out = args[0], kwargs["out"]
    if tensor.dtype != out.dtype:
        raise RuntimeError(f"nan_to_num: dtype of out: {name(out.dtype)} should be same as input: {name(tensor.dtype)}")


@refuses("floor_divide.out", "addr.out")
def result_of_several(operator, args: tuple, kwargs: dict) -> None:
    """Refuses an out= that TensorIterator cannot cast to.

    (aten/src/ATen/native/BinaryOps.cpp, floor_divide_out; LinearAlgebra.cpp, addr_out)
    """
    found = args[0].dtype if isinstance(args[0], torch.Tensor) else args[0]
    for one in args[1:]:
        found = torch.result_type(args[0], one) if found is args[0].dtype else torch.promote_types(found, one.dtype)
    _cast(found, kwargs["out"].dtype)


@refuses("angle.out", "logit.out", "polygamma.out")
def result_in_floating_point(operator, args: tuple, kwargs: dict) -> None:
    """Refuses an out= to which TensorIterator::unary_float_op and similar cannot cast (UnaryOps.cpp)."""
    dtype = arguments.given(operator, "self", args, kwargs).dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    elif dtype.is_complex and operator is torch.ops.aten.angle.out:
        dtype = dtype.to_real()
    _cast(dtype, kwargs["out"].dtype)


@refuses("take.out")
def taken(operator, args: tuple, kwargs: dict) -> None:
    """Refuses take with an out= of a different dtype (aten/src/ATen/native/TensorAdvancedIndexing.cpp, take_out)."""
    if args[0].dtype != kwargs["out"].dtype:
        raise RuntimeError(
            f"take(): self and out expected to have the same dtype, but got self.dtype = {name(args[0].dtype)} and "
            f"out.dtype = {name(kwargs['out'].dtype)}"
        )


@refuses("where.self")
def choices(operator, args: tuple, kwargs: dict) -> None:
    """Refuses two dtypes without a common one (c10/core/ScalarType.cpp, promoteTypes)."""
    if len(args) == 3 and args[1].dtype != args[2].dtype:
        torch.result_type(args[1], args[2])


@refuses("where.self_out")
def chosen(operator, args: tuple, kwargs: dict) -> None:
    """Refuses where with an out= of a different dtype (aten/src/ATen/native/TensorCompare.cpp, where_self_out)."""
    common, out = torch.result_type(*args[1:]), kwargs["out"].dtype
    if common != out:
        raise RuntimeError(f"Expected out type to be {name(common)} but got {name(out)}")


@refuses("index_select.out")
def selected(operator, args: tuple, kwargs: dict) -> None:
    """Refuses index_select of a dtype other than the result's.

    (aten/src/ATen/native/cuda/Indexing.cu, index_select_out_cuda_impl)
    """
    read_as(kwargs["out"].dtype, args[0])


@refuses("stack.out")
def stacked(operator, args: tuple, kwargs: dict) -> None:
    """Refuses stack with an out= that cannot hold the common dtype (TensorShape.cpp, cat's meta function)."""
    common, out = args[0][0].dtype, kwargs["out"].dtype
    for one in args[0][1:]:
        common = torch.promote_types(common, one.dtype)
    if not torch.can_cast(common, out):
        raise TypeError(f"torch.cat(): input types can't be cast to the desired output type {name(out)}")


def _cast(dtype: torch.dtype, to: torch.dtype) -> None:
    """Raises RuntimeError for a result that cannot be cast to the written dtype (TensorIterator's compute_types)."""
    if not torch.can_cast(dtype, to):
        raise RuntimeError(f"result type {name(dtype)} can't be cast to the desired output type {name(to)}")


# Refuses dtypes as CUDA's kernels do, for operators that allocate only their outputs.


@rule("gelu.default")
def gelu(call: OpCall) -> None:
    """Rule of ActivationGeluKernel.cu (aten/src/ATen/native/cuda)."""
    call.allocate_outputs(*call.outputs)
    _floating(call, "GeluCUDAKernelImpl", complex_too=False)


@rule("silu.default")
def silu(call: OpCall) -> None:
    """Rule of ActivationSiluKernel.cu (aten/src/ATen/native/cuda)."""
    call.allocate_outputs(*call.outputs)
    _floating(call, "silu_cuda", complex_too=call.first.dtype != torch.complex32)


def _floating(call: OpCall, kernel: str, complex_too: bool) -> None:
    """Raises NotImplementedError, as AT_DISPATCH_FLOATING_TYPES (_AND_COMPLEX_TYPES) does, for other dtypes."""
    dtype = call.first.dtype
    if not dtype.is_floating_point and not (complex_too and dtype.is_complex):
        not_implemented(kernel, dtype)


@rule("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(call: OpCall) -> None:
    """Rule of GridSampler.cu: the grid is read as of the input's dtype (aten/src/ATen/native/cuda/GridSampler.cu)."""
    tensor, grid = call["input", "grid"]
    (output,) = call.outputs
    if output.numel() and (tensor.dtype != grid.dtype or not tensor.is_floating_point()):
        call.scratch_like(output, tensor.dtype)
        if not tensor.is_floating_point():
            not_implemented(f"{call.operator._opname}_cuda", tensor.dtype)
        read_as(tensor.dtype, grid)
    call.allocate_outputs(output)


@rule("index_select.default")
def index_select(call: OpCall) -> None:
    """Rule of index_select_out_cuda_impl, whose error text is used where it is a gather.

    (aten/src/ATen/native/cuda/Indexing.cu)
    """
    call.allocate_outputs(*call.outputs)
    index = call["index"]
    if call.outputs[0].numel() and index.dtype not in (torch.int64, torch.int32):
        not_implemented("index_select_out_cuda_impl", index.dtype)


@rule("put_.default", only=True)
def put(call: OpCall) -> None:
    """Refuses put_ with a source of a different dtype (aten/src/ATen/native/TensorAdvancedIndexing.cpp, put_)."""
    tensor, source = call["self", "source"]
    if tensor.dtype != source.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{name(tensor.dtype)} and source.dtype = {name(source.dtype)}"
        )
