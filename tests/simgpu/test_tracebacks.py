"""What an error keeps allocated where it is caught. The bytes are the oracle's."""

import traceback

import pytest
import torch
from torch import nn

import labkit
from simgpu.tracebacks import OURS, as_on_gpu

MIB = 2**20


def allow(nbytes: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((nbytes + 1) / total)


def names(trace) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(trace)]


def test_an_error_in_backward_keeps_the_gradient_it_began_with():
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.zeros(10 * MIB, device="cuda", requires_grad=True)
        y = (x * 1).sum()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        allow(60 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            y.backward()
        assert torch.cuda.memory_allocated() - before == 512
        del caught
        assert torch.cuda.memory_allocated() == before


def test_pytorch_s_frames_stay_and_the_simulated_gpu_s_go():
    with labkit.simulated_gpu("A100-80GB"):
        layer = nn.MultiheadAttention(256, 8, device="cuda")
        x = torch.zeros(1024, 4, 256, device="cuda")
        allow(60 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            layer(x, x, x)
        kept = as_on_gpu(caught.value.__traceback__)
        assert "multi_head_attention_forward" in names(kept)
        assert "handle_torch_function" not in names(kept)
        assert not any(frame.f_code.co_filename.startswith(OURS) for frame, _ in traceback.walk_tb(kept))


def test_nothing_is_left_of_no_traceback():
    assert as_on_gpu(None) is None
