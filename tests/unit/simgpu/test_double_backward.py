"""What the gradient of a convolution's gradient takes: the oracle's order, PyTorch's CUDA host code under stubs."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

import simgpu
from simgpu.autograd import sequence_numbers


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
    return (
        number - sequence_numbers._OURS
        if number >= sequence_numbers._OURS
        else sequence_numbers._counts.on_cuda(number)
    )


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


SECOND = {  # what is allocated, bytes: the oracle's
    "conv1d": (
        "x = torch.rand(2, 6, 11, device='cuda', requires_grad=True); "
        "w = torch.rand(9, 6, 3, device='cuda', requires_grad=True); given = x, w; y = F.conv1d(x, w)",
        "528 648 648 648 33554432 648 528 648 33554432 648 648 648 648 648 648 648 528 648 216 528 648",
    ),
    "conv2d, bias": (
        "x = torch.rand(1, 6, 11, 11, device='cuda', requires_grad=True); "
        "w = torch.rand(9, 6, 3, 3, device='cuda', requires_grad=True); "
        "b = torch.rand(9, device='cuda', requires_grad=True); given = x, w, b; y = F.conv2d(x, w, b)",
        "2904 1944 36 2916 17496 33554432 2916 2904 17496 33554432 36 1944 2916 17496 2916 17496 2916 2916 "
        "1944 2916 2904 17496",
    ),
    "conv2d, groups": (
        "x = torch.rand(1, 6, 11, 11, device='cuda', requires_grad=True); "
        "w = torch.rand(9, 2, 3, 3, device='cuda', requires_grad=True); given = x, w; y = F.conv2d(x, w, groups=3)",
        "2904 648 972 5832 33554432 972 5832 972 5832 2916 2916 968 5832 33554432 216 968 5832 216 968 5832 "
        "216 2904 648 972 5832 972 5832 972 5832 2916 972 5832 972 5832 972 5832 2916 2916 216 2916 216 2916 "
        "216 2916 648 968 5832 968 5832 968 5832 2904",
    ),
    "conv_transpose2d": (
        "x = torch.rand(1, 6, 11, 11, device='cuda', requires_grad=True); "
        "w = torch.rand(6, 9, 3, 3, device='cuda', requires_grad=True); given = x, w; y = F.conv_transpose2d(x, w)",
        "2904 1944 6084 39204 33554432 6084 2904 39204 33554432 1944 39204 6084 39204 6084 39204 6084 1944 "
        "4356 2904 39204",
    ),
    "glu": (
        "x = torch.rand(13, 42, device='cuda', requires_grad=True); given = (x,); y = F.glu(x)",
        "2184 1092 1092 2184 1092 2184 2184 1092 1092 1092 1092 1092 1092 1092 1092 1092 1092 1092 1092 1092 "
        "1092 1092 2184",
    ),
    "gelu, tanh": (
        "x = torch.rand(13, 41, device='cuda', requires_grad=True); given = (x,); y = F.gelu(x, approximate='tanh')",
        "2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 "
        "2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132",
    ),
    "prelu": (
        "x = torch.rand(13, 41, 5, device='cuda', requires_grad=True); "
        "w = torch.rand(41, device='cuda', requires_grad=True); given = x, w; y = F.prelu(x, w)",
        "10660 164 10660 10660 10660 10660 164 10660 10660 10660 2665 10660 10660 4 2665 10660 10660 4 2665 10660 164",
    ),
    "logits": (
        "x = torch.rand(13, 41, device='cuda', requires_grad=True); t = torch.rand(13, 41, device='cuda'); "
        "given = (x,); y = F.binary_cross_entropy_with_logits(x, t)",
        "2132 2132 2132 2132 4 4 2132 2132 2132 2132 2132 2132 4 2132",
    ),
    "logits, target": (
        "x = torch.rand(13, 41, device='cuda', requires_grad=True); "
        "t = torch.rand(13, 41, device='cuda', requires_grad=True); given = x, t; "
        "y = F.binary_cross_entropy_with_logits(x, t)",
        "2132 2132 2132 2132 4 4 2132 2132 2132 2132 2132 2132 2132 2132 4 2132 2132 2132 2132 4 2132 2132",
    ),
    "logits, positive weight": (
        "x = torch.rand(13, 41, device='cuda', requires_grad=True); "
        "t = torch.rand(13, 41, device='cuda', requires_grad=True); p = torch.rand(41, device='cuda'); "
        "given = x, t; y = F.binary_cross_entropy_with_logits(x, t, pos_weight=p)",
        "2132 2132 164 2132 164 2132 2132 4 4 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 2132 "
        "2132 2132 4 2132 2132 2132 2132 2132 2132 2132 2132 4 2132 2132 2132 2132 2132 2132",
    ),
}
AGAIN = """
g = torch.randn_like(y).requires_grad_()
gs = torch.autograd.grad(y, given, g, create_graph=True)
torch.autograd.grad(gs, (g, *given), [one.detach() for one in gs], allow_unused=True)
"""


@pytest.mark.parametrize("name", SECOND)
def test_formulas_of_second_gradients_add_what_they_have_made_anew(name):
    """Autograd's engine adds a gradient into another that nothing holds; a formula that adds two of its own does not.
    The formula of logits works in place unless its own gradient may be asked for."""
    code, expected = SECOND[name]
    names = {"torch": torch, "F": nn.functional}
    with simgpu.simulated_gpu("H100"), torch.backends.cudnn.flags(enabled=False):
        torch.zeros(1, device="cuda")
        found = events(lambda: exec(f"{code}\n{AGAIN}", names))
        names.clear()
    assert [size for action, size in found if action == "alloc"] == [int(size) for size in expected.split()]
