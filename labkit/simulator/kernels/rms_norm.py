"""RMS norm, which CUDA computes in one kernel each way (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""

from math import ceil, prod

import torch

from labkit.simulator.kernels.launch import Launch, rule
from labkit.simulator.kernels.reductions import reduce

MANY_ROWS = 64 * 1024  # above which the gradient of the weight goes through partial sums


def copies_unless_contiguous(launch: Launch, *tensors) -> list:
    """Scratch for each tensor that is not contiguous, as `expect_contiguous` makes it."""
    return [launch.scratch_like(tensor) for tensor in tensors if tensor is not None and not tensor.is_contiguous()]


def weight_partials(launch: Launch, weight: torch.Tensor, rows: int) -> None:
    """The partial sums of a weight's gradient over many rows of a narrow matrix, and their sum (GammaBetaBackward)."""
    columns = weight.numel()
    if rows <= MANY_ROWS or columns // 32 >= launch.machine.spec.multiprocessors // 2:
        return
    partial_rows = min(32768 // ceil(columns / 32), ceil(rows / 32))
    partials = torch.empty(partial_rows, columns, dtype=weight.dtype, device="meta")
    held = launch.scratch_like(partials), launch.scratch_like(weight)
    reduce(launch, partials, [0], max(4, weight.element_size()), weight.element_size())
    launch.release(*reversed(held))


@rule("_fused_rms_norm.default")
def forward(launch: Launch) -> None:
    copies_unless_contiguous(launch, launch.args[0], launch.args[2])
    launch.give(*launch.outputs)


@rule("_fused_rms_norm_backward.default")
def backward(launch: Launch) -> None:
    """Copies of the input and the weight, the gradients, a copy of the incoming gradient (oracle trace)."""
    grad_out, tensor, normalized_shape, _, weight, wanted = launch.args
    copies_unless_contiguous(launch, tensor, weight)
    launch.give(*launch.outputs)
    copies_unless_contiguous(launch, grad_out)
    if weight is not None and wanted[1]:
        weight_partials(launch, weight, tensor.numel() // prod(normalized_shape))
