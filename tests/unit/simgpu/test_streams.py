"""Streams and events as objects of torch."""

import pytest
import torch

import labkit
from simgpu.device import machine


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


@pytest.mark.parametrize("entered", [torch.cuda.stream, lambda stream: stream], ids=["torch.cuda.stream", "itself"])
def test_a_stream_inside_itself(entered):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with entered(first):
        with entered(first):
            pass
        assert torch.cuda.current_stream() == first
        with entered(second):
            with entered(first):
                pass
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.parametrize("device", [(), (0,), ("cuda",), (torch.device("cuda", 0),)])
def test_torch_stream_and_event_are_those_of_the_accelerator(device):
    stream, event = torch.Stream(*device), torch.Event(*device, enable_timing=True)
    assert isinstance(stream, torch.cuda.Stream) and isinstance(event, torch.cuda.Event)
    assert isinstance(stream, torch.Stream) and isinstance(event, torch.Event)
    with stream:
        torch.ones(2**20, device="cuda").record_stream(stream)
        event.record()
    event.synchronize()
    assert event.query()


def test_a_device_by_its_number():
    assert torch.device(0) == torch.device("cuda", 0)
    assert torch.zeros(2, device=0).device == torch.device("cuda", 0)


def test_an_event_of_a_gpu_that_is_off_says_so(monkeypatch):
    event, stream = torch.cuda.Event(), torch.cuda.Stream()
    with monkeypatch.context() as patched:
        patched.setattr(machine, "_current", [])
        for use in (event.record, event.synchronize, stream.synchronize, stream.query):
            with pytest.raises(RuntimeError, match="is off"):
                use()


def test_a_state_of_the_generator_of_another_size_is_refused():
    """aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, set_state: "RNG state is wrong size"."""
    with labkit.simulated_gpu():
        torch.cuda.manual_seed(3)
        state = torch.cuda.get_rng_state()
        assert state.numel() == 16
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            torch.cuda.set_rng_state(state[:8])
        assert torch.equal(torch.cuda.get_rng_state(), state)
