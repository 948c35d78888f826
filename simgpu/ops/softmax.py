"""Rules for softmax and log-softmax (aten/src/ATen/native/cuda/SoftMax.cu), which read and write dense tensors only."""

import torch

from simgpu.checks.scalar_types import not_implemented
from simgpu.ops.op_call import OpCall, rule
from simgpu.shapes import meta_kernels

TAKEN = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@rule("_softmax.default", "_log_softmax.default")
def softmax(call: OpCall) -> None:
    """Rule of host_softmax: the output, then a copy of an input that is not contiguous."""
    call.allocate_outputs(*call.outputs)
    if call["self"].numel():
        call.contiguous(call["self"])
        if call["self"].dtype not in TAKEN:
            not_implemented("host_softmax", call["self"].dtype)


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(call: OpCall) -> None:
    """Rule of host_softmax_backward: the gradient, then copies of operands that are not contiguous."""
    call.allocate_outputs(*call.outputs)
    if call["grad_output"].numel():
        call.contiguous(*call["grad_output", "output"])


@rule("_softmax_backward_data.default")
def softmax_backward(call: OpCall) -> None:
    """Rule of softmax_backward_cuda_out: the elementwise grad * output, which is then treated as the gradient."""
    grad, output = call["grad_output", "output"]
    call.allocate_outputs(*call.outputs)
    product = grad
    if not grad.is_contiguous():
        product = meta_kernels.run(torch.ops.aten.mul.Tensor, (grad, output), {})
    call.scratch_like(product)
    if product.numel():
        call.contiguous(product, output)
