"""Every spelling of a move ends on the device that it names, with the memory that PyTorch takes there."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

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


META_MOVES = {
    'to("meta")': lambda one: one.to("meta"),
    'to(device="meta")': lambda one: one.to(device="meta"),
    'to(torch.device("meta"), torch.float32)': lambda one: one.to(torch.device("meta"), torch.float32),
    "to(there)": lambda one: one.to(torch.empty(0, device="meta")),
    "torch.as_tensor": lambda one: torch.as_tensor(one, device="meta"),
    "torch.asarray": lambda one: torch.asarray(one, device="meta"),
    "type_as(there)": lambda one: one.type_as(torch.empty(0, device="meta")),
}


@pytest.mark.parametrize("spelling", META_MOVES)
def test_a_tensor_of_the_host_that_goes_to_meta_is_on_no_gpu(spelling):
    gone = META_MOVES[spelling](torch.zeros(1024))
    assert gone.is_meta and not gone.is_cuda and gone.device == torch.device("meta")
    assert torch.cuda.memory_allocated() == 0


def test_a_module_of_the_host_goes_to_meta_and_has_nothing_to_copy_from_there():
    module = nn.Linear(1024, 1024).to("meta")
    assert module.weight.is_meta and torch.cuda.memory_allocated() == 0
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        module.cuda()


def test_lists_are_grouped_by_the_device_that_their_tensors_say():
    averaged = AveragedModel(nn.Linear(3, 4).cuda(), device="cpu")
    for _ in range(3):
        averaged.update_parameters(nn.Linear(3, 4).cuda())
    assert averaged.n_averaged.tolist() == 3
    group = torch._C._group_tensors_by_device_and_dtype
    for name, made in (("cpu", torch.zeros(3, device="cuda").cpu()), ("cuda:0", torch.zeros(3, device="cuda"))):
        assert list(group([[made]])) == [(torch.device(name), torch.float32)]
