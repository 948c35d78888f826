"""Operators registered with PyTorch's dispatcher while a simulated GPU is on, and taken back after."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labkit
from simgpu.device import machine as machines
from simgpu.ops import autocast

REGISTERED = (
    ("aten::mm", autocast.KEY),
    ("aten::dropout", "AutogradMeta"),
    ("aten::scaled_dot_product_attention", "AutogradMeta"),
    ("aten::_fused_rms_norm", "Meta"),
    ("aten::mish_backward", "Meta"),
)


def registered():
    return [torch._C._dispatch_has_kernel_for_dispatch_key(*one) for one in REGISTERED]


def casting():
    return torch._C._dispatch_tls_is_dispatch_key_included(autocast._key)


def test_registered_while_a_gpu_is_on():
    assert not any(registered())
    with labkit.simulated_gpu("A100-80GB"):
        assert all(registered())
        with labkit.simulated_gpu("H100"):
            assert all(registered())
        assert all(registered())
    assert not any(registered())


def test_taken_back_after_an_exception_under_autocast():
    with pytest.raises(ZeroDivisionError), labkit.simulated_gpu("A100-80GB"), torch.autocast("cuda"):
        assert casting()
        machine = machines.current()
        torch.nn.Linear(2, 2).cuda()(torch.ones(2, 2, device="cuda"))
        assert machine.casts
        raise ZeroDivisionError
    assert not any(registered())
    assert not casting()
    assert not machine.casts


def test_pytorch_s_own_tensors_are_left_alone():
    host = torch.ones(2, 4, requires_grad=True)
    meta = torch.ones(2, 4, requires_grad=True, device="meta")
    expected = F.rms_norm(host, (4,)).detach()
    with labkit.simulated_gpu("A100-80GB"):
        assert torch.equal(F.rms_norm(host, (4,)).detach(), expected)
        assert F.dropout(host, 1.0).tolist() == [[0.0] * 4] * 2
        mask = F.dropout(meta, 0.5).grad_fn
        assert mask.name() == "MulBackward0"  # not the fused kernel of CUDA
        assert torch.cuda.memory_allocated() == 0


def test_operators_that_cuda_has_whole():
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.zeros(8, 4, device="cuda", requires_grad=True)
        assert F.rms_norm(x, (4,)).grad_fn.name() == "FusedRmsNormBackward0"
        before = torch.cuda.memory_allocated()
        y = F.mish(x)
        assert torch.cuda.memory_allocated() - before == 512
        torch.cuda.reset_peak_memory_stats()
        at = torch.cuda.memory_allocated()
        torch.autograd.grad(y, x, torch.zeros_like(y.detach()))
        assert torch.cuda.max_memory_allocated() - at == 2 * 512  # the incoming gradient and the new one


def test_branches_in_inference_mode():
    with labkit.simulated_gpu("A100-80GB"), torch.inference_mode():
        x = torch.zeros(1000, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = F.dropout(x, 0.5)
        assert torch.cuda.max_memory_allocated() - before == 1024 + 4096  # a mask of bytes
        del y


def test_dropout_that_c_plus_plus_calls():
    layers = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.5)
    with labkit.simulated_gpu("A100-80GB"):
        layers.to("cuda")
        layers(torch.zeros(5, 2, 64, device="cuda"))
        x = torch.zeros(1000, device="cuda", requires_grad=True)
        assert torch._VF.dropout(x, 0.5, True).grad_fn.name() == "NativeDropoutBackward0"


def test_views_that_note_themselves_in_inference_mode():
    """narrow and chunk of a tensor from outside: PyTorch notes their result once, and refuses to do so twice."""
    with labkit.simulated_gpu("A100-80GB"):
        x = torch.zeros(8, 4, device="cuda")
        with torch.inference_mode():
            assert x.narrow(0, 1, 3)._base is x
            assert [part.shape[0] for part in x.chunk(3)] == [3, 3, 2]
            assert x.t().narrow(0, 0, 2).reshape(-1).shape == (16,)
