"""Rules for layer norm."""

from math import ceil, prod

import torch

from simgpu.kernels.launch import Launch, rule
from simgpu.kernels.reduction_scratch import reduce
from simgpu.kernels.scalar_types import read_as

MANY_ROWS = 64 * 1024  # above this, partial sums: layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel
PARTIAL_ROWS = 32  # the least rows per partial sum
PARTIAL_BLOCKS = 32 * 1024  # the most thread blocks


@rule("native_layer_norm.default")
def layer_norm(launch: Launch) -> None:
    """Rule of layer_norm_cuda: output, mean, rstd, from dense copies of the inputs (layer_norm_kernel.cu).

    All inputs are read as of the first one's dtype.
    """
    tensor, weight, bias = launch["input", "weight", "bias"]
    launch.contiguous(tensor, weight, bias)
    launch.give(*launch.outputs)
    if tensor.numel():
        read_as(tensor.dtype, weight, bias)


@rule("native_layer_norm_backward.default")
def layer_norm_backward(launch: Launch) -> None:
    """Rule of layer_norm_backward_cuda: the incoming gradient is made dense after the outputs
    (layer_norm_kernel.cu).
    """
    grad, tensor, shape, weight, bias = launch["grad_out", "input", "normalized_shape", "weight", "bias"]
    grad_input, *grads = launch.outputs
    launch.contiguous(tensor, weight, bias)
    launch.give(grad_input)
    columns = prod(shape)
    rows = tensor.numel() // columns if columns else 0
    sums_weights(launch, grad, grads, rows, columns)


def sums_weights(launch: Launch, grad: torch.Tensor, grads: list, rows: int, columns: int) -> None:
    """Allocates the gradients of weights (None if not required): sums of `rows` x `columns` products over the rows.

    With many rows and few columns, blocks of rows are summed first, and their sums with sum(0), whose results replace
    gradients that are already allocated (LaunchGammaBetaBackwardCUDAKernel).
    """
    blocks = ceil(columns / PARTIAL_ROWS)
    if rows <= MANY_ROWS or columns // 32 >= launch.machine.spec.multiprocessors // 2:
        launch.give(*grads)
        if rows and columns:
            launch.contiguous(grad)
        return
    wanted = [output for output in grads if output is not None]
    if not wanted:
        launch.contiguous(grad)
        return
    replaced = [launch.scratch_like(output) for output in wanted]
    launch.contiguous(grad)
    height = min(PARTIAL_BLOCKS // blocks, ceil(rows / PARTIAL_ROWS))
    partials = [torch.empty(height, output.shape[-1], dtype=output.dtype, device="meta") for output in wanted]
    for partial in partials:
        launch.scratch_like(partial)
    for output, partial, old in zip(wanted, partials, replaced, strict=True):
        launch.give(output)
        reduce(launch, partial, [0], max(4, output.element_size()), output.element_size())
        launch.release(old)
