"""Whose memory it is, asked of all modules and optimizers that are alive, also of those that are not finished."""

import pytest
import torch
from torch import nn

import simgpu
from simgpu.report.modules import Modules
from simgpu.report.owners import PARAMETERS, STATES, Owners


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
        owners.on_modules = Modules(lambda tensor, known: named.append((id(tensor), known.kind, known.name))).name_all
        try:
            owners.look()
        finally:
            owners.end()
    assert marked[id(model.weight)] == PARAMETERS
    assert marked[id(optimizer.state[model.weight]["exp_avg"])] == STATES
    assert id(odd.silent) in marked
    assert {(id(model.weight), "Linear", ""), (id(odd.silent), "Module", "")} <= set(named)
    assert len(held) == 1
