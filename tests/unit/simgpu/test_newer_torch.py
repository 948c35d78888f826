"""What torch 2.14 and 2.15 allocate otherwise than torch 2.13: rules by version, against PyTorch's CUDA host code.

The events are the oracle's, of torch 2.15.0 and 2.14.1 on an A100-80GB. The rules of a version run on whatever torch is
installed, whose own C++ and Python the snippets do not depend on.
"""

import pytest
import torch

import simgpu
from simgpu import session
from simgpu.errors import NotModelledError
from tools.oracle.cases import on_simulated

# Of each snippet: the code, its events in 2.15.0, and in 2.14.1.
CASES = {
    "a linear layer": (
        "x = torch.randn(8, 16, device='cuda', requires_grad=True)\n"
        "layer = nn.Linear(16, 32, device='cuda')\n"
        "layer(x).sum().backward()",
        "S2097152 a512 a2048 a128 a1024 a1048576 f1048576 a4 f1024 a4 a512 a1024 S20971520 a8519680 "
        "f8519680 f1024 a2048 a1024 a8519680 f8519680 f1024 a128 f4 f4 f512 f512 f2048 f2048 f128 f128",
        "S2097152 a512 a2048 a128 a1024 S20971520 a8519680 a4 f1024 a4 a512 a1024 a8519680 f1024 a2048 "
        "a1024 f1024 a128 f4 f4 f512 f512 f2048 f2048 f128 f128",
    ),
    "products": (
        "a = torch.randn(8, 8, device='cuda')\nb = a @ a\nc = torch.bmm(a[None], a[None])",
        "S2097152 a256 a256 S20971520 a8519680 f8519680 a256 a8519680 f8519680 f256 f256 f256",
        "S2097152 a256 a256 S20971520 a8519680 a256 f256 f256 f256",
    ),
    "a convolution": (
        "x = torch.randn(3, 4, 8, 8, device='cuda')\n"
        "layer = nn.Conv2d(4, 6, 3, device='cuda')\n"
        "layer(x).sum().backward()",
        "S2097152 a3072 a864 a24 a2592 a5184 S20971520 a8519680 f8519680 a8519680 f8519680 a8519680 "
        "f8519680 f5184 a4 f2592 a4 a2592 a24 a864 a5184 a8519680 f8519680 a8519680 f8519680 a8519680 "
        "f8519680 f5184 f2592 f4 f4 f3072 f864 f864 f24 f24",
        "S2097152 a3072 a864 a24 a2592 a5184 S20971520 a8519680 f5184 a4 f2592 a4 a2592 a24 a864 a5184 "
        "a8519680 f5184 f2592 f4 f4 f3072 f864 f864 f24 f24",
    ),
    "a dilated convolution": (
        "x = torch.randn(2, 4, 8, 8, device='cuda', requires_grad=True)\n"
        "layer = nn.Conv2d(4, 6, 3, dilation=2, device='cuda')\n"
        "layer(x).sum().backward()",
        "S2097152 a2048 a864 a24 a768 a2304 S20971520 a8519680 f8519680 a8519680 f8519680 f2304 a4 f768 "
        "a4 a768 a2048 a864 a24 a2304 a8519680 f8519680 a8519680 f8519680 a24 f24 a8519680 f8519680 "
        "a8519680 f8519680 a24 f24 f2304 f768 f4 f4 f2048 f2048 f864 f864 f24 f24",
        "S2097152 a2048 a864 a24 a768 a2304 S20971520 a8519680 f2304 a4 f768 a4 a768 a2048 a864 a24 "
        "a2304 a8519680 a24 f24 a24 f24 f2304 f768 f4 f4 f2048 f2048 f864 f864 f24 f24",
    ),
    "a transposed convolution": (
        "x = torch.randn(2, 4, 8, 8, device='cuda')\n"
        "layer = nn.ConvTranspose2d(4, 6, 3, device='cuda')\n"
        "with torch.no_grad(): y = layer(x)",
        "S2097152 a2048 a864 a24 a4800 a13824 a400 S20971520 a8519680 f8519680 a8519680 f8519680 "
        "a8519680 f8519680 a8519680 f8519680 f400 f13824 f2048 f864 f24 f4800",
        "S2097152 a2048 a864 a24 a4800 a13824 a400 S20971520 a8519680 f400 f13824 f2048 f864 f24 f4800",
    ),
    "norms of a list": (
        "tensors = [torch.empty(size, device='cuda') for size in (70_000, 10, 0, 200_000)]\n"
        "norms = torch._foreach_norm(tensors)\n"
        "del norms\n"
        "norms = torch._foreach_max(tensors[:2])",
        "S2097152 a280000 a40 a800000 a32 a28 a4 a4 a4 a4 a4 f4 f28 f32 f4 f4 f4 f4 a24 a4 a4 a12 f12 "
        "f24 f800000 f40 f280000 f4 f4",
        "S2097152 a280000 a40 a800000 a64 a4 a4 a4 a4 a4 f4 f64 f4 f4 f4 f4 a4 a4 a16 f16 f800000 f40 f280000 f4 f4",
    ),
    "efficient attention": (
        "q = torch.randn(1, 2, 64, 32, device='cuda')\n"
        "y = F.scaled_dot_product_attention(q, q, q)\n"
        "z = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)",
        "S2097152 a16384 a8 a8 a16384 f8 f8 a16384 f16384 f16384 f16384",
        "S2097152 a16384 a8 a8 a16384 f8 f8 a16384 f16384 f16384 f16384",
    ),
    "group norm of single pixels": (
        "x = torch.randn(2, 8, device='cuda', requires_grad=True)\n"
        "w = torch.ones(8, device='cuda', requires_grad=True)\n"
        "F.group_norm(x, 2, w).sum().backward()",
        "S2097152 a64 a32 a64 a16 a16 a4 f64 a4 a64 a64 a32 a16 a16 f16 f16 f64 f16 f16 f4 f4 f64 f64 f32 f32",
        "S2097152 a64 a32 a64 a16 a16 a4 f64 a4 a64 a64 a32 a16 a16 f16 f16 f64 f16 f16 f4 f4 f64 f64 f32 f32",
    ),
    "distances": (
        "a, b = (torch.randn(size, 3, device='cuda', requires_grad=True) for size in (5, 40))\n"
        "torch.cdist(a, b).sum().backward()",
        "S2097152 a60 a480 a60 a20 f60 a20 a480 a160 f480 a160 a60 a100 f20 f20 f60 a800 f160 f160 a800 "
        "S20971520 a8519680 f8519680 f800 f100 a4 a4 a800 a200 f200 a60 a8519680 f8519680 a20 a60 a60 "
        "a480 a8519680 f8519680 a160 a480 a480 f480 f160 f480 f60 f20 f60 f800 f800 f4 f4 f60 f60 f480 "
        "f480",
        "S2097152 a60 a480 a60 a20 f60 a20 a480 a160 f480 a160 a60 a100 f20 f20 f60 a800 f160 f160 a800 "
        "S20971520 a8519680 f800 f100 a4 a4 a800 a200 f200 a60 a8519680 a20 a60 a60 a480 a160 a480 a480 "
        "f480 f160 f480 f60 f20 f60 f800 f800 f4 f4 f60 f60 f480 f480",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("at", "version"), [(1, (2, 15)), (2, (2, 14))], ids=["2.15", "2.14"])
def test_allocations_are_those_of_the_version(name, at, version, monkeypatch):
    monkeypatch.setattr(session, "installed_torch", lambda: version)
    with torch.backends.cudnn.flags(enabled=False):
        (found,) = on_simulated([CASES[name][0]], "A100-80GB")
    assert (found.error, found.events) == (None, CASES[name][at])


def test_cublaslt_adds_a_matrix_of_a_half_type(monkeypatch):
    """In torch 2.15, where it is not the output and the product counts. The events are the oracle's."""
    monkeypatch.setattr(session, "installed_torch", lambda: (2, 15))
    code = (
        "x, w, c = (torch.ones(size, device='cuda', dtype=torch.bfloat16) for size in ((64, 96), (96, 48), (64, 48)))\n"
        "a = torch.addmm(c, x, w, beta=2)\n"
        "b = torch.addmm(c, x, w, alpha=0)\n"
        "c.addmm_(x, w)"
    )
    (found,) = on_simulated([code], "A100-80GB")
    assert found.events == (
        "S2097152 a12288 a9216 a6144 a6144 a1048576 f1048576 a6144 S20971520 a8519680 f8519680 a8519680 f8519680 "
        "f12288 f9216 f6144 f6144 f6144"
    )


@pytest.fixture
def simulated_2_14(monkeypatch):
    monkeypatch.setattr(session, "installed_torch", lambda: (2, 14))
    with simgpu.simulated_gpu("A100-80GB"):
        yield


RECORD = ("all", "all", "all", 100, True, False, False, [])  # what torch.cuda.memory hands over up to torch 2.13


def test_a_history_that_does_not_record_the_gpu_is_off(simulated_2_14):
    torch._C._cuda_record_memory_history(*RECORD, False, True)
    assert torch._C._cuda_isHistoryEnabled()
    torch._C._cuda_record_memory_history(*RECORD, False, False)
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_history_of_pinned_memory_is_refused(simulated_2_14):
    with pytest.raises(NotModelledError, match="does not count pinned memory of the host"):
        torch._C._cuda_record_memory_history(*RECORD, True, True)


def test_an_annotation_is_an_event_of_its_block(simulated_2_14):
    torch._C._cuda_record_memory_history(*RECORD)
    x = torch.ones(10, device="cuda")
    torch._C._cuda_annotateMemory(x.data_ptr(), "mine")
    torch._C._cuda_annotateMemory(x.data_ptr() + 512, "of no block in use")
    found = torch._C._cuda_memorySnapshot(None)
    events = [event for event in found["device_traces"][0] if event["action"] in ("alloc", "annotate")]
    assert [(event["action"], event["addr"], event["size"], event["user_metadata"]) for event in events] == [
        ("alloc", x.data_ptr(), 40, ""),
        ("annotate", x.data_ptr(), 40, "mine"),
    ]
    assert (found["host_segments"], found["host_traces"]) == ([], [])


def test_more_arguments_than_the_version_has_are_refused(monkeypatch):
    monkeypatch.setattr(session, "installed_torch", lambda: (2, 13))
    with simgpu.simulated_gpu("A100-80GB"), pytest.raises(TypeError, match=r"Sequence\[str\]\) -> None"):
        torch._C._cuda_record_memory_history(*RECORD, False, True)
