"""Rules for RMS norm, which CUDA computes in one kernel each way (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""

from math import prod

from simgpu.kernels.launch import Launch, rule
from simgpu.kernels.norms import sums_weights


@rule("_fused_rms_norm.default")
def forward(launch: Launch) -> None:
    """Rule of _fused_rms_norm_cuda: output and rstd, computed from dense copies of the inputs."""
    launch.contiguous(*launch["input", "weight"])
    launch.give(*launch.outputs)


@rule("_fused_rms_norm_backward.default")
def backward(launch: Launch) -> None:
    """Rule of _fused_rms_norm_backward_cuda: as layer norm's, with one weight."""
    grad, tensor, shape, weight = launch["grad_out", "input", "normalized_shape", "weight"]
    grad_input, grad_weight = launch.outputs
    launch.contiguous(tensor, weight)
    launch.give(grad_input)
    columns = prod(shape)
    rows = tensor.numel() // columns if columns else 0
    sums_weights(launch, grad, [grad_weight], rows, columns)
