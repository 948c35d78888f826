"""autocast("cuda"): which operators run in which dtype, the cache of casts, and coming and going."""

import threading

import pytest
import torch
from torch import nn

import labkit
from simgpu.ops import autocast


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB") as gpu:
        yield gpu


def operand(dtype=torch.float32, requires_grad=False):
    return torch.zeros(4, 4, dtype=dtype, device="cuda", requires_grad=requires_grad)


def allocated():
    return torch.cuda.memory_allocated()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_policies(dtype):
    x, half = operand(), operand(dtype)
    with torch.autocast("cuda", dtype=dtype):
        assert (x @ x).dtype == dtype
        assert torch.einsum("ij,jk->ik", x, x).dtype == dtype
        assert torch.exp(half).dtype == torch.float32
        assert half.sum().dtype == torch.float32
        assert half.softmax(-1, dtype=torch.float64).dtype == torch.float64
        assert torch.norm(half).dtype == torch.float32
        assert torch.addcmul(half, half, half).dtype == dtype
        assert torch.addcmul(half, x, half).dtype == torch.float32
        assert (half + x).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64
    assert (x @ x).dtype == torch.float32


def test_every_operator_of_pytorch_s_lists_is_known():
    known = {*autocast.LOWER, *autocast.FP32, *autocast.FP32_RESULT, *autocast.WIDEST, *autocast.NORM, *autocast.BANNED}
    known.add("_cudnn_rnn")  # listed by CUDA builds alone; cuDNN's RNN is left out, and never called
    named = {one for one in autocast.listed() if "dimname" in one.lower() or ".names_" in one}  # torch 2.11 lists them
    assert set(autocast.listed()) - named <= known


def test_what_is_banned():
    x = operand()
    with (
        torch.autocast("cuda"),
        pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"),
    ):
        nn.functional.binary_cross_entropy(x, x)
    nn.functional.binary_cross_entropy(x, x)


def test_mixed_half_types_have_no_widest():
    with (
        torch.autocast("cuda", dtype=torch.float16),
        pytest.raises(RuntimeError, match="Unexpected floating ScalarType"),
    ):
        torch.addcmul(*[operand(torch.bfloat16)] * 3)


def test_casts_of_weights_are_kept_until_the_outermost_region_ends():
    weight = nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
    x = torch.zeros(1, 1024, dtype=torch.float16, device="cuda")
    with torch.no_grad():
        x @ weight.half()  # cuBLAS's workspace
        before = allocated()
        with torch.autocast("cuda"):
            x @ weight.t()
            assert allocated() == before  # a view is no leaf
            with torch.autocast("cuda"):
                torch.mm(x, weight)
            assert allocated() == before + weight.nbytes // 2
            torch.mm(x, weight)
            assert allocated() == before + weight.nbytes // 2
        assert allocated() == before
        with torch.autocast("cuda", cache_enabled=False):
            torch.mm(x, weight)
            assert allocated() == before


def test_each_gpu_keeps_its_own_casts():
    weight = nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
    x = torch.zeros(1, 1024, dtype=torch.float16, device="cuda")
    with torch.no_grad(), torch.autocast("cuda"):
        torch.mm(x, weight)
        before = allocated()
        with labkit.simulated_gpu("T4"), torch.autocast("cuda", enabled=False):
            other = nn.Parameter(torch.zeros(8, 8, device="cuda"))
            with torch.autocast("cuda"):
                torch.mm(torch.zeros(1, 8, device="cuda"), other)
        torch.mm(x, weight)
        assert allocated() == before


def test_backward_runs_in_the_dtype_of_forward():
    x = operand(requires_grad=True)
    with torch.autocast("cuda"):
        y = x @ x
    seen = []
    y.register_hook(lambda grad: seen.append(grad.dtype))
    y.float().sum().backward()
    assert seen == [torch.float16]
    assert x.grad.dtype == torch.float32


def test_disabled_inside_and_the_cpu_outside():
    x, host = operand(), torch.ones(2, 2)
    with torch.autocast("cuda"):
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (host @ host).tolist() == [[2.0, 2.0], [2.0, 2.0]]
        assert (x @ x).dtype == torch.float16


def test_each_thread_has_its_own():
    x, found = operand(), []
    with torch.autocast("cuda"):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [torch.float32]


def test_custom_functions():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a @ a

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            (a,) = ctx.saved_tensors
            return grad @ a

    x = operand(torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        y = Product.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.float16


@pytest.mark.parametrize(("mode", "casts"), [(torch.no_grad, 0), (torch.inference_mode, 2)])
def test_casts_where_no_gradient_is_wanted(mode, casts):
    """As the oracle, torch 2.11 and 2.13: no_grad keeps them, inference mode casts weight and bias at each call."""
    layer, x = nn.Linear(16, 16).cuda(), torch.zeros(2, 16, device="cuda", dtype=torch.bfloat16)
    with mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        layer(x)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        result = layer(x)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] - before - 1 == casts
    assert result.dtype == torch.bfloat16


def test_casts_made_without_gradients_serve_those_with():
    layer, x = nn.Linear(16, 16).cuda(), torch.zeros(2, 16, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            layer(x)
        layer(x).float().sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


def test_operators_inside_others_are_cast_in_inference_mode():
    """As the oracle: F.interpolate's upsample_nearest2d.vec arrives whole there, and what it calls is cast to fp32 (a
    cast of 3,840 bytes and a result of 15,360); what an operator that has been cast calls is not cast again."""
    x = torch.zeros(2, 8, 6, 10, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        y = nn.functional.interpolate(x, scale_factor=2)
        assert nn.functional.cross_entropy(operand(torch.bfloat16), operand().argmax(1)).dtype == torch.float32
        assert nn.functional.cosine_similarity(*[operand(torch.bfloat16)] * 2).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert nn.functional.interpolate(x, scale_factor=2).dtype == torch.bfloat16
        assert nn.functional.interpolate(x, scale_factor=2).dtype == torch.float32
    assert y.dtype == torch.float32
    assert nn.functional.interpolate(x, scale_factor=2).dtype == torch.bfloat16
    del y
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        nn.functional.interpolate(x, scale_factor=2)
    assert torch.cuda.memory_stats()["requested_bytes.all.peak"] - before == 3840 + 15360


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_run_in_inference_mode(kind):
    """As the oracle, with cuDNN off: weights in fp32 and an input in bf16."""
    network, x = kind(10, 12, device="cuda"), torch.zeros(6, 8, 10, device="cuda", dtype=torch.bfloat16)
    with torch.backends.cudnn.flags(enabled=False), torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        assert network(x)[0].dtype == torch.bfloat16


def test_the_lists_are_pytorch_s_own():
    assert {"matmul", "linear", "_convolution.deprecated", "cudnn_convolution"} <= autocast.LOWER
    assert {"softmax.int", "sum.dim_IntList"} <= autocast.FP32_RESULT
    assert {"layer_norm", "pow.Tensor_Scalar"} <= autocast.FP32 and {"addcmul", "index_put"} <= autocast.WIDEST
    lists = (autocast.LOWER, autocast.FP32, autocast.FP32_RESULT, autocast.WIDEST)
    assert sum(map(len, lists)) == len(frozenset().union(*lists))
