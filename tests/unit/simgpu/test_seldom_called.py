"""Results into tensors that are there (`out=`), and what else a program draws once in a while, with the oracle's figures."""

# ruff: noqa: E501

import pytest
import torch

import simgpu
from simgpu.checks import missing_cuda_kernels
from simgpu.errors import NotModelledError
from tests.pinned import of_pinned_torch
from tools.oracle import cases

# Made by tools.oracle.cases.on_oracle: PyTorch's CUDA host code under stub libraries, torch 2.13.0.
CASES = {
    "masks of the host": (
        "x = torch.zeros(10, 4, device='cuda'); m = torch.tensor([True, False] * 5)\n"
        "y = x[m]; x[m] = 1.0; x[m, 1] = torch.ones(5, device='cuda')\n",
        "S2097152 a160 a40 a80 f40 a4 a40 f40 f4 a20 a40 f40 f20 f160 f80",
        None,
        None,
    ),
    "mv": (
        "a = torch.zeros(64, 32, device='cuda'); v = torch.zeros(32, device='cuda')\n"
        "torch.mv(a, v, out=torch.empty(0, device='cuda')); torch.mv(a, v, out=torch.empty(64, device='cuda'))\n",
        "S2097152 a8192 a128 a256 a256 S33554432 a33554432 f256 f256 a256 f256 f8192 f128",
        "S2097152 a8192 a128 a256 a256 S20971520 a8519680 f256 f256 a256 f256 f8192 f128",
        None,
    ),
    "randperm": (
        "torch.randperm(5000, out=torch.empty(0, dtype=torch.long, device='cuda')); torch.randperm(70000, out=torch.empty(140000, dtype=torch.long, device='cuda')[::2])\n",
        "S2097152 a8 f8 a40000 a40000 a20000 a20000 a70143 f70143 f20000 f20000 f40000 f40000 S20971520 a1120000 a8 f8 a560000 a560000 a560000 S2097152 a560000 a1147391 f1147391 f560000 f560000 f560000 f560000 f1120000",
        "S2097152 a8 f8 a40000 a40000 a20000 a20000 a71167 f71167 f20000 f20000 f40000 f40000 S20971520 a1120000 a8 f8 a560000 a560000 a560000 S2097152 a560000 a1150463 f1150463 f560000 f560000 f560000 f560000 f1120000",
        None,
    ),
    "normal": (
        "a = torch.zeros(60, 50, device='cuda'); torch.normal(a, 2.0, out=torch.empty(60, 50, device='cuda')); torch.normal(a[0], 1.0, out=torch.empty(60, 50, device='cuda'))\n",
        "S2097152 a12000 a12000 a12000 f12000 f12000 a12000 a12000 f12000 f12000 f12000",
        None,
        None,
    ),
    "normal of another shape": (
        "torch.normal(torch.zeros(5, 5, device='cuda'), 2.0, out=torch.empty(0, device='cuda'))\n",
        "S2097152 a100 f100",
        None,
        "RuntimeError: The size of tensor a (5) must match the size of tensor b (0) at non-singleton dimension 1",
    ),
    "batch norm": (
        "x = torch.zeros(4, 8, 10, device='cuda'); w = torch.ones(8, device='cuda'); e = lambda: torch.empty(0, device='cuda')\n"
        "torch.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5, out=(e(), e(), e()))\n"
        "torch.ops.aten._native_batch_norm_legit.out(x, w, w, w.clone(), w.clone(), True, 0.1, 1e-5, out=e(), save_mean=e(), save_invstd=e())\n",
        "S2097152 a1280 a32 a32 a32 a1280 f32 f32 f1280 a32 a32 a32 a32 a1280 f32 f32 f32 f32 f1280 f1280 f32",
        None,
        None,
    ),
    "flash attention alone": (
        "q = torch.zeros(2, 300, 4, 24, device='cuda', dtype=torch.bfloat16, requires_grad=True); k = torch.zeros(2, 120, 4, 24, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "o = torch.ops.aten._flash_attention_forward(q, k, k, None, None, 300, 120, 0.1, True, False); o[0].sum().backward()\n",
        "S2097152 a115200 a46080 a115200 a9600 a16 a8 a16 f16 a2 a2 a115200 a115200 a46080 a46080 a12288 a393216 f393216 f12288 f115200 f46080 f2 f2 f8 f16 f9600 f46080 f46080 f115200 f115200 f115200",
        None,
        None,
    ),
    "max lying otherwise": (
        "a = torch.zeros(100, 4, device='cuda'); torch.max(a, 0, out=(torch.empty(8, device='cuda')[::2], torch.empty(4, dtype=torch.long, device='cuda')))\n",
        "S2097152 a1600 a32 a32 f32 f32 f1600",
        None,
        "RuntimeError: reduce_op(): expected both outputs to have same strides, but output1 has [0, 2] and output2 has [0, 1]",
    ),
}


@pytest.mark.parametrize("gpu", ["H100", "A100-80GB"])
@pytest.mark.parametrize("name", CASES)
def test_events_are_the_oracle_s(name, gpu):
    code, on_h100, on_a100, error = CASES[name]
    (found,) = cases.on_simulated([code], gpu)
    wanted = on_a100 if gpu == "A100-80GB" and on_a100 is not None else on_h100
    assert (found.events, found.error) == (wanted, error)


@of_pinned_torch
def test_a_graph_that_an_earlier_gpu_was_left_with_changes_no_order_of_frees():
    with simgpu.simulated_gpu("H100"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        torch.autograd.grad((x * x).sum(), x, create_graph=True)
    code, wanted, *_ = CASES["flash attention alone"]
    assert cases.on_simulated([code], "H100")[0].events == wanted


@of_pinned_torch
def test_multinomial_lets_go_of_the_least_before_the_largest():
    with simgpu.simulated_gpu("H100"):
        probabilities = torch.ones(20, 500, device="cuda")
        torch.cuda.memory._record_memory_history(clear_history=True)
        torch.multinomial(probabilities, 5)
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
    made, freed = (
        [e["addr"] for e in history if (e["action"], e["size"]) == (kind, 4)] for kind in ("alloc", "free_completed")
    )
    assert len(made) == 2
    assert freed == made


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("histogram.bin_ct", lambda x: torch.histogram(x, 10)),
        ("_add_relu.Tensor", lambda x: torch.ops.aten._add_relu(x, x)),
        ("narrow_copy.out", lambda x: torch.narrow_copy(x, 0, 1, 3, out=x.new_empty(3))),
        (
            "_upsample_lanczos2d_aa.out",
            lambda x: torch.ops.aten._upsample_lanczos2d_aa(x.view(1, 1, 5, 10), [3, 3], False, None, None),
        ),
        ("to_mkldnn", lambda x: x.to_mkldnn()),
    ],
)
def test_what_only_the_cpu_has_is_refused_in_pytorch_s_words(name, call):
    if not hasattr(torch.ops.aten, name.partition(".")[0]):
        pytest.skip("this torch has no such operator")
    with simgpu.simulated_gpu("H100"):
        x = torch.zeros(50, device="cuda")
        with pytest.raises(
            NotImplementedError, match=f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend"
        ):
            call(x)
    if name == "histogram.bin_ct":
        assert torch.histogram(torch.zeros(50), 10).hist.sum() == 50


def test_the_operators_that_only_the_cpu_has_exist():
    for name in missing_cuda_kernels.missing_kernels():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if hasattr(torch.ops.aten, packet):  # some came with a later torch
            assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_forward_mode_says_what_it_leaves_out_and_functions_of_torch_func_do_not():
    with simgpu.simulated_gpu("H100") as gpu:
        x = torch.ones(6, 4, device="cuda")
        torch.func.jvp(lambda x: x.softmax(-1), (x,), (x,))
        assert "torch.autograd.forward_ad" not in str(gpu.unmodeled)
        with (
            pytest.warns(simgpu.IncompleteEstimateWarning, match="forward-mode derivatives of softmax"),
            torch.autograd.forward_ad.dual_level(),
        ):
            torch.autograd.forward_ad.make_dual(x, x).softmax(-1)


def test_sparse_layouts_are_refused_with_what_to_do_instead():
    with simgpu.simulated_gpu("H100"):
        for make in (lambda: torch.ones(3, 3, device="cuda").to_sparse(), _of_sparse_embedding):
            with pytest.raises(NotModelledError, match=r"layout.*sparse=False"):
                make()


def _of_sparse_embedding():
    embedding = torch.nn.Embedding(10, 4, sparse=True, device="cuda")
    embedding(torch.tensor([1, 2], device="cuda")).sum().backward()
