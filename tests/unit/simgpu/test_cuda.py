"""Corners of torch.cuda that training scripts touch."""

import pytest
import torch
from torch import nn

import labkit
from tests.pinned import of_pinned_torch


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


def test_marks_for_profilers_do_nothing():
    """The numbers are those of the oracle, where no profiler is attached either."""
    nvtx = torch.cuda.nvtx
    assert (nvtx.range_push("step"), nvtx.range_pop(), nvtx.range_start("all")) == (-2, -2, 0)
    with nvtx.range("forward"):
        nvtx.mark("here")
    nvtx.range_end(0)


@of_pinned_torch
def test_data_parallel_on_the_one_gpu():
    """The figures are the oracle's. An input from the host is copied on a stream of its own."""
    model = nn.DataParallel(nn.Linear(300, 10).cuda())
    peaks = []
    for given in (torch.randn(64, 300), torch.randn(64, 300, device="cuda"), torch.randn(300, 64).t()):
        model(given).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks == [17221632, 17221632, 17234432]
    segments = [
        (segment["stream"] != 0, segment["total_size"], segment["allocated_size"])
        for segment in torch.cuda.memory_snapshot()
    ]
    assert segments == [(False, 2097152, 25600), (True, 2097152, 0), (False, 20971520, 17039360)]


@pytest.mark.filterwarnings("ignore:Using -1:FutureWarning")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_gradient_of_its_input_goes_back(device):
    given = torch.randn(64, 300, device=device, requires_grad=True)
    nn.DataParallel(nn.Linear(300, 10).cuda())(given).sum().backward()
    assert given.grad.shape == given.shape and given.grad.device.type == device


def test_there_is_no_second_gpu():
    with pytest.raises(AssertionError, match="Invalid device id"):  # PyTorch's own words
        nn.DataParallel(nn.Linear(300, 10).cuda(), device_ids=[0, 1])
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        torch.nn.parallel.comm.scatter(torch.randn(4, 4), ["cuda:1"])


def test_a_broadcast_to_the_one_gpu():
    """torch/csrc/cuda/comm.cpp, broadcast: what is there is handed on, what is on the host is copied."""
    there = torch.ones(3, device="cuda")
    assert torch.nn.parallel.comm.broadcast(there, ["cuda:0"])[0].data_ptr() == there.data_ptr()
    (copy,) = torch.nn.parallel.comm.broadcast(torch.ones(3), ["cuda:0"])
    assert copy.is_cuda and copy.shape == (3,)


def test_blocks_without_a_tensor():
    """torch.cuda.caching_allocator_alloc; figures and words of the oracle's."""
    addresses = [torch.cuda.caching_allocator_alloc(nbytes) for nbytes in (1000, 3000000)]
    assert torch.cuda.memory_allocated() == 1024 + 3000320
    assert torch.cuda.caching_allocator_alloc(0) == 0
    torch.cuda.caching_allocator_delete(0)
    for address in addresses:
        torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="invalid device pointer: 0x3039"):
        torch.cuda.caching_allocator_delete(0x3039)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 100\.00 GiB"):
        torch.cuda.caching_allocator_alloc(100 * 2**30)


@pytest.mark.parametrize("use", [torch.cuda.set_device, lambda number: torch.cuda.device(number).__enter__()])
def test_a_gpu_that_is_not_there_is_refused(use):
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
        use(1)
    use(0)
    assert torch.cuda.current_device() == 0
