"""What torch.cuda says of the device: driver, seeds, events, graphs, its memory and what it refuses."""

import time

import pytest
import torch

import simgpu
from simgpu.allocator.caching import CachingAllocator
from simgpu.allocator.out_of_memory import InvalidFree, OutOfMemory
from simgpu.allocator.physical import Device
from simgpu.errors import NotModelledError
from simgpu.recording.workloads import WORKLOADS


@pytest.fixture
def gpu():
    with simgpu.simulated_gpu("A100-80GB") as on:
        yield on


def test_the_driver_is_there_after_torch_s_own_initialisation(gpu):
    torch._C._cuda_init()
    assert torch.cuda.is_initialized()


def test_seeds_are_those_that_a_state_was_taken_with(gpu):
    for seed in (5, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        other = torch.Generator(device="cuda")
        other.set_state(generator.get_state())
        assert other.initial_seed() == generator.initial_seed() == seed


def test_events_of_the_history_happened_now(gpu):
    """Microseconds since 1970 (c10/util/ApproximateClock.h)."""
    begun = time.time()
    torch.cuda.memory._record_memory_history()
    torch.ones(1, device="cuda")
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    assert all(begun - 1 <= event["time_us"] / 1e6 <= time.time() + 1 for event in events if "time_us" in event)
    assert events


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="a PyTorch without torch.accelerator.Graph")
def test_graphs_of_the_accelerator_are_refused_in_cuda_s_words(gpu):
    """The words are the oracle's (tests/data/oracle/public_names.json)."""
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: cuda"):
        torch.accelerator.Graph()


def test_a_class_that_is_refused_can_be_named_and_not_made(gpu):
    assert torch.cuda.gds.GdsFile.__name__ == "GdsFile"
    with pytest.raises(NotModelledError, match=r"torch\.cuda\.gds\.GdsFile is not modelled"):
        torch.cuda.gds.GdsFile("file", 0)


def test_what_pytorch_would_give_back_a_part_of_is_named():
    allocator = CachingAllocator(Device(64 * 2**20))
    block = allocator.malloc(512)
    assert str(InvalidFree(block)) == f"cudaFree of {block!r}, a part of a segment"
    assert not InvalidFree(block).inside and InvalidFree(allocator.malloc(512)).inside


def test_the_text_of_an_out_of_memory_error():
    assert str(OutOfMemory("CUDA out of memory.", size=512)) == "CUDA out of memory."


def test_a_process_of_three_gibibytes_has_three():
    with simgpu.simulated_gpu("T4"):
        WORKLOADS["settings-default"](lambda name: None)
        total = torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.get_per_process_memory_fraction() * total == pytest.approx(3 * 2**30)
        assert torch.cuda.max_memory_reserved() <= 3 * 2**30
