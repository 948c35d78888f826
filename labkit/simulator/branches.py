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


