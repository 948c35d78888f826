"""Every spelling of a move ends on the device that it names, with the memory that PyTorch takes there."""

import pytest
import torch
from torch import nn

import simgpu


@pytest.fixture(autouse=True)
def gpu():
    with simgpu.simulated_gpu("H100"):
        yield


MODULE_MOVES = {
    'to("cuda")': lambda one: one.to("cuda"),
    'to(device="cuda")': lambda one: one.to(device="cuda"),
    "to(0)": lambda one: one.to(0),
    "to(device=0)": lambda one: one.to(device=0),
    'to(device="cuda:0", non_blocking=True)': lambda one: one.to(device="cuda:0", non_blocking=True),
    'to(dtype=torch.float32, device="cuda")': lambda one: one.to(dtype=torch.float32, device="cuda"),
    'to(device=torch.device("cuda", 0))': lambda one: one.to(device=torch.device("cuda", 0)),
    "to(tensor=there)": lambda one: one.to(tensor=torch.empty(0, device="cuda")),
}


@pytest.mark.parametrize("spelling", MODULE_MOVES)
def test_a_module_moves_however_it_is_said(spelling):
    before = torch.cuda.memory_allocated()
    module = MODULE_MOVES[spelling](nn.Linear(1024, 1024))
    assert module.weight.device == module.bias.device == torch.device("cuda", 0)
    assert torch.cuda.memory_allocated() - before == 4 * 2**20 + 4096
    assert MODULE_MOVES[spelling](module).weight is module.weight
    assert torch.cuda.memory_allocated() - before == 4 * 2**20 + 4096
    module.to(device="cpu")
    assert module.weight.device == torch.device("cpu")
    assert torch.cuda.memory_allocated() == before
