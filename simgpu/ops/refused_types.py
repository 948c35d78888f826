"""Refuses dtypes as CUDA's kernels do, for operators that allocate only their outputs."""

import torch

from simgpu.checks.scalar_types import name, not_implemented, read_as
from simgpu.ops.op_call import OpCall, rule


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
