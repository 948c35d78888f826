"""AOTAutograd's two graphs on the simulated GPU: what they save; and PyTorch is the user's own inside plain_torch."""

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import nn

import labkit
from helpers.compiling import partition, plain_torch

ROWS, WIDTH = 2048, 1024
ACTIVATION = 4 * ROWS * WIDTH


class SiLU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x) * 2.0 * torch.sigmoid(x)


def tower():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), SiLU(), nn.Linear(WIDTH, WIDTH))


def added(model):
    model, x = model.cuda(), torch.zeros(ROWS, WIDTH, device="cuda")
    model(x).sum().backward()
    before = torch.cuda.memory_allocated()
    y = model(x)
    held = torch.cuda.memory_allocated() - before
    y.sum().backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())
    return held


def test_the_cut_saves_less_and_the_default_what_autograd_saves():
    rows = torch.zeros(ROWS, WIDTH)
    with labkit.simulated_gpu("A100-80GB"):
        eager = added(tower())
        same = added(partition(tower(), rows, cut=default_partition))
        least = added(partition(tower(), rows, cut=min_cut_rematerialization_partition))
    assert round(eager / ACTIVATION) == round(same / ACTIVATION)
    assert round(least / ACTIVATION) < round(eager / ACTIVATION)
    assert round(least / ACTIVATION) >= 3  # the output, and what the two multiplications need


def test_the_operators_say_which_results_cross_the_cut():
    rows = torch.zeros(4, 8)
    with labkit.simulated_gpu("A100-80GB"):
        model = nn.Sequential(nn.Linear(8, 8), SiLU(), nn.Linear(8, 8))
        everything = partition(model, rows, cut=default_partition).operators
        least = partition(model, rows, cut=min_cut_rematerialization_partition).operators
    assert [name.rstrip("_0123456789") for name in everything] == [
        *("addmm", "sigmoid", "mul", "mul", "sigmoid", "mul", "addmm")
    ]
    assert set(least) < set(everything)  # the second sigmoid is the first one's
    assert sum(least.values()) < sum(everything.values())
    assert everything["sigmoid"]  # it is saved by way of a view
    assert not any(list(row.values())[-1] for row in (everything, least))  # the output is not saved


def test_tensors_made_in_the_graph_are_made_on_the_gpu():
    with labkit.simulated_gpu("A100-80GB"):
        model = nn.Sequential(nn.Linear(8, 8), nn.SiLU())
        part = partition(model, torch.zeros(4, 8), cut=min_cut_rematerialization_partition).cuda()
        part(torch.zeros(4, 8, device="cuda")).sum().backward()


def test_torch_compile_sees_tensors_of_the_cpu():
    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with labkit.simulated_gpu("A100-80GB"):
        with plain_torch():
            torch.compile(nn.Linear(8, 8), backend=backend)(torch.zeros(4, 8))
        assert torch.zeros(1, device="cuda").is_cuda
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), "without buffers"),
        (nn.LSTM(8, 8), "one tensor as its output"),
    ],
)
def test_models_that_do_not_fit_are_refused(model, wanted):
    with labkit.simulated_gpu("A100-80GB"), pytest.raises(ValueError, match=wanted):
        partition(model, torch.zeros(4, 8), cut=default_partition)


def test_a_model_on_the_gpu_is_refused():
    with labkit.simulated_gpu("A100-80GB"), pytest.raises(ValueError, match="on the CPU"):
        partition(nn.Linear(8, 8).cuda(), torch.zeros(4, 8), cut=default_partition)
