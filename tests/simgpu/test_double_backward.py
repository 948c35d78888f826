"""What the gradient of a convolution's gradient takes: the oracle's order, PyTorch's CUDA host code under stubs."""

import torch
from torch import nn

import simgpu


def events(action) -> list[tuple[str, int]]:
    torch.cuda.memory._record_memory_history(clear_history=True, context=None)
    result = action()
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    del result
    return [(one["action"][:5], one["size"]) for one in history if one["action"] in ("alloc", "free_completed")]


def test_the_gradient_is_made_contiguous_before_the_convolution_that_reads_it():
    """_convolution_double_backward: the copy of 36,864 B comes before that of the input, and goes after it."""
    with simgpu.simulated_gpu("H100"), torch.backends.cudnn.flags(enabled=False):
        layer = nn.Conv2d(3, 16, 4, 2, 1, bias=False).cuda()
        x = torch.randn(9, 3, 16, 16, device="cuda", requires_grad=True)
        y = layer(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        found = events(lambda: torch.autograd.grad(gradient, layer.weight, torch.ones_like(gradient)))
    assert "alloc 36864 alloc 27648 alloc 3072 alloc 36864 free_ 36864 free_ 27648 free_ 36864" in " ".join(
        f"{action} {size}" for action, size in found
    )
