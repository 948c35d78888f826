"""What copies to the host hold there, and what they take on the way."""

import math
import tracemalloc

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import labkit
from simgpu.device.machine import current
from simgpu.errors import NoValueError

MiB = 2**20


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


@pytest.mark.parametrize("pin_memory", [False, True])
def test_save_on_cpu_is_counted_and_takes_no_host_memory(pin_memory):
    x = torch.randn(64 * MiB, device="cuda", requires_grad=True)  # 256 MiB
    tracemalloc.start()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
        y = x.exp()
        z = y.sin()
    assert current().host_bytes == 2 * x.nbytes  # the results of exp and the operand of sin, each copied
    assert tracemalloc.get_traced_memory()[1] < MiB
    tracemalloc.stop()
    del y
    allocated = torch.cuda.memory_allocated()
    assert allocated == 2 * x.nbytes  # x and z
    z.sum().backward()
    assert x.grad.shape == x.shape
    del z
    assert current().host_bytes == 0


def test_a_real_tensor_that_is_copied_into_holds_nan():
    host = torch.zeros(3)
    host.copy_(torch.rand(3, device="cuda"))
    assert all(map(math.isnan, host.tolist()))


def test_integers_that_are_not_known_cannot_be_copied_into_a_real_tensor():
    with pytest.raises(NoValueError, match="copy_"):
        torch.zeros(3, dtype=torch.int64).copy_(torch.randint(5, (3,), device="cuda"))


def test_a_strided_tensor_is_made_contiguous_on_the_gpu_before_it_goes():
    x = torch.empty(4, 2 * MiB, device="cuda")[:, ::2]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x.cpu()
    assert torch.cuda.max_memory_allocated() - before == x.numel() * 4
    assert torch.cuda.memory_allocated() == before


def test_a_storage_that_is_resized_gives_its_memory_back():
    x = torch.empty(MiB, device="cuda")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0
    storage.resize_(4 * MiB)
    assert torch.cuda.memory_allocated() == 4 * MiB


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_pins_what_it_loads(workers):
    for (batch,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4, num_workers=workers, pin_memory=True):
        assert batch.is_pinned() and batch.sum() == 16
        assert not batch.clone().is_pinned()
        assert batch.to("cuda", non_blocking=True).is_cuda
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor'"):
        torch.ones(1, device="cuda").pin_memory()
