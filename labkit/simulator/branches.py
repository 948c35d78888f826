"""The branches that PyTorch's C++ takes where is_cuda(), for operators that are made of others on a meta tensor."""

import torch
import torch.nn.functional as F

from labkit.simulator.handlers import handles
from labkit.simulator.tensors import on_gpu


@handles(torch.dropout, F.dropout)
def dropout(mode, function, args, kwargs):
    """aten/src/ATen/native/Dropout.cpp: on CUDA the fused kernel, which keeps a mask of 1 B an element."""
    names = ("input", "p", "training" if function is F.dropout else "train", "inplace")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    p, train = given.get("p", 0.5), given.get("training", given.get("train", True))
    tensor = given["input"]
    if not on_gpu(tensor) or given.get("inplace") or not train or not 0 < p < 1 or tensor.numel() == 0:
        return function(*args, **kwargs)
    return torch.native_dropout(tensor, p, True)[0]


@handles(F.linear)
def linear(mode, function, args, kwargs):
    """aten/src/ATen/native/Linear.cpp: adds a bias that addmm cannot take in place, as it does not under a mode."""
    given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    tensor, weight, bias = given["input"], given["weight"], given.get("bias")
    if bias is None or tensor.dim() == 2 or not on_gpu(tensor) or (bias.is_contiguous() and tensor.is_contiguous()):
        return function(*args, **kwargs)
    return torch.matmul(tensor, weight.t()).add_(bias)
