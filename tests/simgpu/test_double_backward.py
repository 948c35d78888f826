"""What the gradient of a convolution's gradient takes: the oracle's order, PyTorch's CUDA host code under stubs."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

import simgpu
from simgpu.tensors import numbering


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


def number_of(node) -> int:
    """A node's number on CUDA."""
    number = node._sequence_nr()
    return number - numbering._OURS if number >= numbering._OURS else numbering._counts.on_cuda(number)


def test_what_backward_made_is_counted_apart_from_what_the_program_made():
    """`_sequence_nr()` on the oracle: 1, 5, 9 of exp and 3, 7, 11 of the product, both made by the program; and of the
    gradient, made by the device's thread, also 3, 7, 11."""
    with simgpu.simulated_gpu("H100"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        numbers = []
        for _ in range(3):
            y = (x * x).exp()
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            numbers.append([number_of(one.grad_fn) for one in (y, gradient * 2, gradient)])
    first, second, _ = numbers[0]
    assert second == first + 2
    assert [[a - b for a, b in zip(row, numbers[0], strict=True)] for row in numbers] == [[0] * 3, [4] * 3, [8] * 3]


def test_a_copy_to_the_gpu_is_no_node_where_no_gradient_is_wanted():
    counted = torch._C._autograd._get_sequence_nr
    with simgpu.simulated_gpu("H100"):
        before = counted()
        nn.Linear(3, 4).to("cuda")
        torch.ones(3).to("cuda")
        assert counted() == before
        assert torch.ones(3, requires_grad=True).to("cuda").requires_grad
        assert counted() == before + 1


def taken_from(begin, create_graph):
    """What a linear layer's tanh and its backward take, begun at `begin` of its result."""

    def step():
        layer, x = nn.Linear(64, 64).cuda(), torch.zeros(8, 64, device="cuda", requires_grad=True)
        result = layer(x).tanh()
        (gradient,) = torch.autograd.grad(begin(result), [x], torch.ones_like(result), create_graph=create_graph)
        if create_graph:
            gradient.pow(2).sum().backward()

    with simgpu.simulated_gpu("A100-80GB"):
        torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # cuBLAS's workspace
        return events(step)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_may_begin_at_an_edge(create_graph):
    """torch.autograd.graph.GradientEdge, as the zero-bubble schedules of torch.distributed.pipelining have it."""
    at_tensor, at_edge = (taken_from(begin, create_graph) for begin in (lambda y: y, get_gradient_edge))
    of_edge, of_tensor = ([one for one in found if one[0] == "alloc"] for found in (at_edge, at_tensor))
    assert of_edge == of_tensor and len(of_edge) > 4
    assert sorted(at_edge) == sorted(at_tensor)  # an edge does not hold the result: it is freed earlier


def test_an_edge_of_one_number_is_given_a_gradient():
    """On CUDA (the oracle) torch.autograd.backward(edge) takes 4 bytes for the 1 it begins with, as for a tensor."""
    with simgpu.simulated_gpu("A100-80GB"):
        weight = torch.zeros(8, 8, device="cuda", requires_grad=True)
        total = weight.sum()
        made = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        torch.autograd.backward(get_gradient_edge(total))
        taken = torch.cuda.memory_stats()["requested_bytes.all.allocated"] - made
        assert taken == 4 + 4 * 8 * 8  # the 1, and the gradient
        assert weight.grad.shape == (8, 8) and weight.grad.device.type == "cuda"


def test_edges_on_the_cpu_and_on_meta_stay_there():
    with simgpu.simulated_gpu("T4"):
        on_cpu = torch.ones(3, requires_grad=True)
        torch.autograd.backward(get_gradient_edge((2 * on_cpu).sum()))
        assert on_cpu.grad.tolist() == [2, 2, 2]
        assert torch.cuda.memory_allocated() == 0
