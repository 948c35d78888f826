"""Rules for layer norm and RMS norm."""

from math import ceil, prod

import torch

from simgpu.checks.scalar_types import read_as
from simgpu.ops.op_call import OpCall, rule
from simgpu.ops.reduction_scratch import reduce

MANY_ROWS = 64 * 1024  # above this, partial sums: layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel
PARTIAL_ROWS = 32  # the least rows per partial sum
PARTIAL_BLOCKS = 32 * 1024  # the most thread blocks


@rule("native_layer_norm.default")
def layer_norm(call: OpCall) -> None:
    """Rule of layer_norm_cuda: output, mean, rstd, from dense copies of the inputs (layer_norm_kernel.cu).

    All inputs are read as of the first one's dtype.
    """
    tensor, weight, bias = call["input", "weight", "bias"]
    call.contiguous(tensor, weight, bias)
    call.allocate_outputs(*call.outputs)
    if tensor.numel():
        read_as(tensor.dtype, weight, bias)


@rule("_fused_rms_norm.default")
def rms_norm(call: OpCall) -> None:
    """Rule of _fused_rms_norm_cuda: output and rstd, computed from dense copies of the inputs."""
    call.contiguous(*call["input", "weight"])
    call.allocate_outputs(*call.outputs)


@rule("native_layer_norm_backward.default", "_fused_rms_norm_backward.default")
def layer_norm_backward(call: OpCall) -> None:
    """Rule of layer_norm_backward_cuda and _fused_rms_norm_backward_cuda, which has no bias.

    The incoming gradient is made dense after the outputs (layer_norm_kernel.cu).
    """
    grad, tensor, shape, weight = call["grad_out", "input", "normalized_shape", "weight"]
    grad_input, *grads = call.outputs
    call.contiguous(tensor, weight, call.get("bias"))
    call.allocate_outputs(grad_input)
    columns = prod(shape)
    rows = tensor.numel() // columns if columns else 0
    _sums_weights(call, grad, grads, rows, columns)


def _sums_weights(call: OpCall, grad: torch.Tensor, grads: list, rows: int, columns: int) -> None:
    """Allocates the gradients of weights (None if not required): sums of `rows` x `columns` products over the rows.

    With many rows and few columns, blocks of rows are summed first, and their sums with sum(0), whose results replace
    gradients that are already allocated (LaunchGammaBetaBackwardCUDAKernel).
    """
    blocks = ceil(columns / PARTIAL_ROWS)
    if rows <= MANY_ROWS or columns // 32 >= call.machine.spec.multiprocessors // 2:
        call.allocate_outputs(*grads)
        if rows and columns:
            call.contiguous(grad)
        return
    wanted = [output for output in grads if output is not None]
    if not wanted:
        call.contiguous(grad)
        return
    replaced = [call.scratch_like(output) for output in wanted]
    call.contiguous(grad)
    height = min(PARTIAL_BLOCKS // blocks, ceil(rows / PARTIAL_ROWS))
    partials = [torch.empty(height, output.shape[-1], dtype=output.dtype, device="meta") for output in wanted]
    for partial in partials:
        call.scratch_like(partial)
    for output, partial, old in zip(wanted, partials, replaced, strict=True):
        call.allocate_outputs(output)
        reduce(call, partial, [0], max(4, output.element_size()), output.element_size())
        call.release(old)
