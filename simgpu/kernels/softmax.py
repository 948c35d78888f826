"""Rules for softmax and log-softmax (aten/src/ATen/native/cuda/SoftMax.cu), which read and write dense tensors only."""

import torch

from simgpu.kernels.launch import Launch, rule
from simgpu.kernels.scalar_types import not_implemented
from simgpu.tensors import meta_kernels

TAKEN = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@rule("_softmax.default", "_log_softmax.default")
def softmax(launch: Launch) -> None:
    """Rule of host_softmax: the output, then a copy of an input that is not contiguous."""
    launch.give(*launch.outputs)
    if launch["self"].numel():
        launch.contiguous(launch["self"])
        if launch["self"].dtype not in TAKEN:
            not_implemented("host_softmax", launch["self"].dtype)


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(launch: Launch) -> None:
    """Rule of host_softmax_backward: the gradient, then copies of operands that are not contiguous."""
    launch.give(*launch.outputs)
    if launch["grad_output"].numel():
        launch.contiguous(*launch["grad_output", "output"])


@rule("_softmax_backward_data.default")
def softmax_backward(launch: Launch) -> None:
    """Rule of softmax_backward_cuda_out: the elementwise grad * output, which is then treated as the gradient."""
    grad, output = launch["grad_output", "output"]
    launch.give(*launch.outputs)
    product = grad
    if not grad.is_contiguous():
        product = meta_kernels.run(torch.ops.aten.mul.Tensor, (grad, output), {})
    launch.scratch_like(product)
    if product.numel():
        launch.contiguous(product, output)
