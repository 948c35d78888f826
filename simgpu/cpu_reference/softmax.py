"""Softmax from half precision to fp32 in one kernel, which only CUDA has (aten/src/ATen/native/cuda/SoftMax.cu)."""

from __future__ import annotations

import torch

from simgpu.cpu_reference.cpu_call import Call, cpu_impl


@cpu_impl("_softmax.default", "_log_softmax.default")
def softmax(call: Call):
    """Returns the result, in fp32 if `half_to_float`."""
    tensor, dim, to_single = call["self", "dim", "half_to_float"]
    return call.operator(tensor.float() if to_single else tensor, dim, False)


@cpu_impl("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def softmax_backward(call: Call):
    """Returns the gradient, in the dtype of the input."""
    grad, output, dim = call["grad_output", "output", "dim"]
    return call.operator(grad, output, dim, torch.promote_types(grad.dtype, output.dtype))
