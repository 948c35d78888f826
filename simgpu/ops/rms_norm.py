"""Rules for RMS norm, which CUDA computes in one kernel each way (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""

from math import prod

from simgpu.ops.norms import sums_weights
from simgpu.ops.op_call import OpCall, rule


@rule("_fused_rms_norm.default")
def forward(call: OpCall) -> None:
    """Rule of _fused_rms_norm_cuda: output and rstd, computed from dense copies of the inputs."""
    call.contiguous(*call["input", "weight"])
    call.allocate_outputs(*call.outputs)


@rule("_fused_rms_norm_backward.default")
def backward(call: OpCall) -> None:
    """Rule of _fused_rms_norm_backward_cuda: as layer norm's, with one weight."""
    grad, tensor, shape, weight = call["grad_out", "input", "normalized_shape", "weight"]
    grad_input, grad_weight = call.outputs
    call.contiguous(tensor, weight)
    call.allocate_outputs(grad_input)
    columns = prod(shape)
    rows = tensor.numel() // columns if columns else 0
    sums_weights(call, grad, [grad_weight], rows, columns)
