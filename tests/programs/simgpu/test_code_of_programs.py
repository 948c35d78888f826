"""What programs bring along or have made of their functions: traces of torch.jit, code for the GPU, nested tensors; and
what PyTorch's kernels in Python import.

Right values: PyTorch's CUDA host code under stub libraries (torch 2.13.0, H100, cuDNN off).
"""

import gc
import importlib
import importlib.machinery
import sys
from typing import Any

import pytest
import torch
from torch import nn

import simgpu
from simgpu import patches
from simgpu.errors import OTHER_ENGINE, NotModelledError
from simgpu.torch_patches import compiling

TRACED = {  # peak above what was there before the trace, B; None where the check of the trace has it, which is left out
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4), 1536),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(64, 2, batch_first=True), (2, 5, 64), 214528),
    "LSTM": (lambda: nn.LSTM(8, 8), (3, 2, 8), 10240),
    "Linear": (lambda: nn.Linear(192, 8), (4, 192), None),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (1, 3, 8, 8), None),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3), (1, 3, 8), None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACED)
def test_a_module_is_traced_and_runs(name):
    make, shape, peak = TRACED[name]
    with torch.backends.cudnn.flags(enabled=False), simgpu.simulated_gpu("H100") as gpu:
        warm = torch.ones(8, 8, device="cuda")
        module, x = make().cuda(), torch.randn(*shape, device="cuda") + (warm @ warm).sum()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        traced: Any = torch.jit.trace(module, x)
        if peak is not None:
            assert torch.cuda.max_memory_allocated() - before == peak
        assert "torch.jit.trace" in dict(gpu.unmodeled)
        result, eager = (one[0] if isinstance(one, tuple) else one for one in (traced(x), module(x)))
        assert result.is_cuda and result.shape == eager.shape
        assert any(kind in str(traced.inlined_graph) for kind in ("aten::linear", "aten::lstm", "norm", "convolution"))
        result.sum().backward()
        assert all(one.grad is not None for one in module.parameters())


def test_a_trace_without_simulated_tensors_is_pytorchs_own():
    module, x = nn.Linear(3, 3), torch.randn(2, 3)
    with simgpu.simulated_gpu("H100") as gpu:
        traced: Any = torch.jit.trace(module, x)
        assert torch.equal(traced(x), module(x))
        assert not gpu.unmodeled


# The first product of a thread takes cuBLAS's workspace.
F32 = torch.float32
PRODUCTS = {
    "mm": lambda a, b, acc: torch.mm(a, a, out_dtype=F32),
    "mm into": lambda a, b, acc: torch.mm(a, a, out_dtype=F32, out=acc),
    "addmm": lambda a, b, acc: torch.addmm(acc, a, a, out_dtype=F32),
    "addmm into": lambda a, b, acc: torch.addmm(acc, a, a, out_dtype=F32, out=acc),
    "bmm": lambda a, b, acc: torch.bmm(b, b, out_dtype=F32),
    "baddbmm": lambda a, b, acc: torch.baddbmm(acc.expand(2, 64, 64), b, b, out_dtype=F32),
    "baddbmm into": lambda a, b, acc: torch.baddbmm(c := acc.repeat(2, 1, 1), b, b, out_dtype=F32, out=c),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_product_takes_the_workspace(name):
    with simgpu.simulated_gpu("H100"):
        a, acc = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16), torch.zeros(64, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        result = PRODUCTS[name](a, a.expand(2, 64, 64), acc)
        assert result.dtype == F32
        del result
        assert torch.cuda.memory_allocated() - before == 33554432


FIRST_RELU = """
import gc, torch, simgpu
gc.disable()
def f():
    x = torch.randn(500, 560, device="cuda")
    return torch.relu(x).sum()
with simgpu.simulated_gpu("H100"):
    r = f()
    print(torch.cuda.memory_allocated())
"""


def test_nothing_is_imported_in_the_middle_of_an_operator(tmp_path):
    """What is imported there keeps the frames of the caller, and their tensors."""
    import subprocess

    done = subprocess.run([sys.executable, "-c", FIRST_RELU], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["512"]
    assert gc.isenabled()


def refused(call, name):
    with pytest.raises(NotModelledError, match=name) as caught:
        call()
    assert OTHER_ENGINE in str(caught.value)


def test_code_for_the_gpu_is_refused_by_name():
    from torch.nn.attention.flex_attention import flex_attention
    from torch.utils import cpp_extension

    before = cpp_extension._jit_compile, torch.cuda._compile_kernel, sys.meta_path[:]
    with simgpu.simulated_gpu("H100"):
        q = torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.float16)
        refused(lambda: flex_attention(q, q, q), "flex_attention")
        refused(lambda: torch.cuda._compile_kernel("__global__ void f() {}", "f"), "_compile_kernel")
        refused(lambda: cpp_extension.load("mine", ["a.cpp", "b.cu"]), "the CUDA extension 'mine'")
        refused(lambda: cpp_extension.load_inline("mine", "", "__global__ void f() {}"), "the CUDA extension 'mine'")
        jitted = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
        refused(lambda: jitted(q), "jiterator")
    assert (cpp_extension._jit_compile, torch.cuda._compile_kernel, sys.meta_path) == before


def test_triton_is_refused_where_it_is_imported_later(tmp_path, monkeypatch):
    """Modules of Triton's names, which tell what was called; Triton itself need not be installed."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    files = {
        "triton/__init__.py": "",
        "triton/runtime/__init__.py": "",
        "triton/runtime/jit.py": "class JITFunction:\n    __name__ = 'add_kernel'\n    def run(self): return 'ran'\n",
        "triton/backends/__init__.py": "",
        "triton/backends/nvidia/__init__.py": "",
        "triton/backends/nvidia/driver.py": "class CudaDriver:\n    pass\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    changed = patches.Patches()
    with compiling.refused(changed):
        jit = importlib.import_module("triton.runtime.jit")
        driver = importlib.import_module("triton.backends.nvidia.driver")
        refused(jit.JITFunction().run, "the Triton kernel 'add_kernel'")
        refused(driver.CudaDriver, "Triton kernels")
    changed.undo()
    assert jit.JITFunction().run() == "ran" and driver.CudaDriver()
    assert jit.__spec__ is not None and type(jit.__spec__.loader) is importlib.machinery.SourceFileLoader
    for name in [one for one in sys.modules if one.partition(".")[0] == "triton"]:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore")
def test_strided_nested_tensors_are_refused_in_one_text():
    on_host = [torch.randn(3, 8), torch.randn(5, 8)]
    nested = torch.nested.nested_tensor(on_host)
    attention = nn.functional.scaled_dot_product_attention
    heads = torch.nested.nested_tensor([torch.randn(2, 4, 8), torch.randn(2, 4, 8)])
    with simgpu.simulated_gpu("H100"):
        on_gpu = [one.cuda() for one in on_host]
        for call in (
            lambda: torch.nested.nested_tensor(on_gpu),
            lambda: torch.nested.nested_tensor(on_host, device="cuda"),
            lambda: torch.nested.as_nested_tensor(on_gpu),
            nested.cuda,
            lambda: nested.to("cuda"),
        ):
            refused(call, "nested tensors of strided layout: make them with layout=torch.jagged")
        assert attention(heads, heads, heads).device.type == "cpu"
        jagged = torch.nested.nested_tensor(on_gpu, layout=torch.jagged).view(2, -1, 2, 4).transpose(1, 2)
        refused(lambda: attention(jagged, jagged, jagged), "scaled_dot_product_attention of nested tensors: pad them")
