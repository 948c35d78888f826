"""The branches that PyTorch's C++ takes where is_cuda(), for operators that are made of others on a meta tensor."""

import torch

from labkit.simulator.dispatcher import branch, decomposed


@branch("dropout")
def dropout(input, p, train):
    """aten/src/ATen/native/Dropout.cpp: on CUDA the fused kernel, which keeps a mask of 1 B an element."""
    if not train or not 0 < p < 1 or input.numel() == 0:
        return decomposed(torch.ops.aten.dropout.default, (input, p, train), {})
    return torch.native_dropout(input, p, True)[0]


@branch("linear")
def linear(input, weight, bias=None):
    """aten/src/ATen/native/Linear.cpp: adds a bias that addmm cannot take in place, as it does not under a mode."""
    if bias is None or input.dim() == 2 or (bias.is_contiguous() and input.is_contiguous()):
        return decomposed(torch.ops.aten.linear.default, (input, weight, bias), {})
    return torch.matmul(input, weight.t()).add_(bias)


def _converts_inside(tensor, dtype) -> bool:
    return tensor.dtype == torch.float16 and dtype == torch.float32


@branch("softmax.int")
def softmax(tensor, dim, dtype=None):
    """aten/src/ATen/native/SoftMax.cpp: from half precision to single in the one kernel, bfloat16 not."""
    inside = _converts_inside(tensor, dtype)
    return torch._softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)


@branch("log_softmax.int")
def log_softmax(tensor, dim, dtype=None):
    """aten/src/ATen/native/SoftMax.cpp: as softmax."""
    inside = _converts_inside(tensor, dtype)
    return torch._log_softmax(tensor if inside or dtype is None else tensor.to(dtype), dim, inside)
