"""Whose memory it is, asked of all modules and optimizers that are alive, also of those that are not finished."""

import pytest
import torch
from torch import nn

import simgpu
from simgpu.report.modules import Modules
from simgpu.report.owners import GRADIENTS, PARAMETERS, STATES, Owners


class Unfinished(torch.optim.SGD):
    """An optimizer whose __init__ raises: something may still hold it."""

    def __init__(self, parameters, holder):
        holder.append(self)
        raise ValueError("no")


class Silent(torch.Tensor):
    """A tensor that answers nothing, as ShardedTensor does."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"torch function '{function.__name__}' is not supported")


def test_objects_of_any_kind_may_be_alive():
    with simgpu.simulated_gpu("H100"):
        model = nn.Linear(8, 8, bias=False, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 8, device="cuda")).sum().backward()
        optimizer.step()
        odd = nn.Module()
        odd.register_buffer("silent", torch.empty(4, device="cuda").as_subclass(Silent))
        held, marked, named = [], {}, []
        with pytest.raises(ValueError, match="no"):
            Unfinished(model.parameters(), held)
        owners = Owners()
        owners.begin(lambda tensor, owner, parameter=None: marked.setdefault(id(tensor), owner))
        modules = Modules(lambda tensor, known: named.append((id(tensor), known.kind, known.name)), lambda tensor: True)
        owners.on_modules = modules.name_all
        try:
            owners.look()
        finally:
            owners.end()
    assert marked[id(model.weight)] == PARAMETERS
    assert marked[id(optimizer.state[model.weight]["exp_avg"])] == STATES
    assert id(odd.silent) in marked
    assert {(id(model.weight), "Linear", ""), (id(odd.silent), "Module", "")} <= set(named)
    assert len(held) == 1


def test_a_view_whose_base_was_changed_in_place_may_be_alive():
    """PyTorch raises where such a view is asked whether it is a leaf."""

    def program():
        weight = torch.ones(4, 8, device="cuda", requires_grad=True)
        base = weight * 1
        view, _ = base.split(2)
        base.add_(1)
        with pytest.raises(RuntimeError, match="multiple views"):
            view.is_leaf  # noqa: B018
        weight.sum().backward()

    report = simgpu.run(program, gpu="T4")
    assert report.completed, report.ended
    assert report.parts[GRADIENTS] == 512


def test_models_of_an_earlier_program_are_not_counted():
    kept = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(512, 512, device="cuda")

        def forward(self, x):
            return self.inner(x)

    def program():
        for _ in range(2):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters())
            model(torch.ones(4, 512, device="cuda")).sum().backward()
            optimizer.step()
            kept.append((model, optimizer))

    first, second = (simgpu.run(program, gpu="T4") for _ in range(2))
    assert {one.model for one in first.modules} == {"Net", "Net #2", ""}
    assert second.modules == first.modules
    assert second.parts == first.parts
