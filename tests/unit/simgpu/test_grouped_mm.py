"""Products of groups, as mixtures of experts make them: what CUDA accepts, its texts (the oracle's) and its memory."""

import warnings

import pytest
import torch

import labkit
from simgpu.unmodeled import IncompleteEstimateWarning
from tests.pinned import of_pinned_torch

MIB = 2**20


def ends(*numbers):
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
def test_every_dtype_is_multiplied(gpu, dtype):
    with labkit.simulated_gpu(gpu):
        left = torch.zeros(128, 256, device="cuda", dtype=dtype, requires_grad=True)
        right = torch.zeros(4, 256, 64, device="cuda", dtype=dtype, requires_grad=True)
        output = torch._grouped_mm(left, right, offs=ends(32, 64, 96, 128))
        assert (output.shape, output.dtype, output.stride()) == ((128, 64), dtype, (64, 1))
        (output * 2).sum().backward(retain_graph=True)
        assert (left.grad.shape, right.grad.shape) == (left.shape, right.shape)


def test_rows_begin_at_16_bytes():
    with labkit.simulated_gpu("H100"):
        left = torch.zeros(40, 16, device="cuda")
        right = torch.zeros(3, 30, 16, device="cuda").transpose(1, 2)[..., :30]
        assert torch._grouped_mm(left, right, offs=ends(8, 16, 40)).stride() == (32, 1)


@pytest.mark.parametrize(("groups", "expected"), [(3, 204), (4, 240), (5, 324), (40, 2400)])
def test_cutlass_keeps_its_arguments_on_the_gpu(groups, expected):
    with labkit.simulated_gpu("H100"):
        left = torch.zeros(1280, 256, device="cuda", dtype=torch.bfloat16)
        right = torch.zeros(groups, 256, 64, device="cuda", dtype=torch.bfloat16)
        where = torch.arange(groups, device="cuda", dtype=torch.int32)
        torch.cuda.memory._record_memory_history()
        torch._grouped_mm(left, right, offs=where)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        assert [event["size"] for event in trace if event["action"] == "alloc"][1:] == [expected, 132 * 512]


def test_cublas_multiplies_group_by_group_elsewhere():
    for gpu, dtype, workspace in (("A100-80GB", torch.bfloat16, 8.125 * MIB), ("H100", torch.float32, 32 * MIB)):
        with labkit.simulated_gpu(gpu):
            left = torch.zeros(32, 16, device="cuda", dtype=dtype)
            right = torch.zeros(2, 16, 16, device="cuda", dtype=dtype)
            empty, full = ends(0, 0), ends(8, 32)
            before = torch.cuda.memory_allocated()
            torch._grouped_mm(left, right, offs=empty)
            assert torch.cuda.memory_allocated() == before
            torch._grouped_mm(left, right, offs=full)
            assert torch.cuda.memory_allocated() == before + workspace


@pytest.mark.parametrize(
    ("left", "right", "offsets", "text"),
    [
        ((8, 255, torch.float32), (2, 255, 63, torch.float32), True, "strides should be multiple of 16 bytes"),
        ((8, 16, torch.float64), (2, 16, 16, torch.float64), True, "Expected mat_a to be Float32, BFloat16 or Float16"),
        ((8, 16, torch.float32), (2, 16, 16, torch.float32), False, "Have to provide offsets if there is a 2d matrix"),
        (
            (8, 16, torch.float32),
            (2, 32, 16, torch.float32),
            True,
            "contraction dimension of mat_a and mat_b must match",
        ),
        ((8, 16, torch.float32), (2, 16, 16, torch.bfloat16), True, "expected mat1 and mat2 to have the same dtype"),
    ],
)
def test_errors_are_cuda_s(left, right, offsets, text):
    with labkit.simulated_gpu("A100-80GB"):
        operands = [torch.zeros(*shape, device="cuda", dtype=dtype) for *shape, dtype in (left, right)]
        with pytest.raises(RuntimeError, match=text):
            torch._grouped_mm(*operands, offs=ends(4, 8) if offsets else None)


def test_there_is_an_end_for_each_group():
    with labkit.simulated_gpu("A100-80GB"):
        left, right = torch.zeros(8, 16, device="cuda"), torch.zeros(3, 16, 16, device="cuda")
        with pytest.raises(RuntimeError, match="matrix batch sizes have to match"):
            torch._grouped_mm(left, right, offs=ends(4, 8))


@of_pinned_torch
def test_8_bit_floats_want_a_gpu_that_multiplies_them():
    for gpu, works in (("A100-80GB", False), ("H100", True), ("RTX-4090", True)):
        with labkit.simulated_gpu(gpu):
            left = torch.zeros(128, 256, device="cuda").to(torch.float8_e4m3fn)
            right = torch.zeros(64, 256, device="cuda").to(torch.float8_e4m3fn).t()
            one = torch.ones((), device="cuda")
            if not works:
                with pytest.raises(RuntimeError, match="only supported on CUDA devices with compute capability"):
                    torch._scaled_mm(left, right, scale_a=one, scale_b=one)
                continue
            before = torch.cuda.memory_allocated()
            output = torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            workspace = (32 if gpu == "H100" else 8.125) * MIB
            assert torch.cuda.memory_allocated() - before == output.nbytes + workspace


@of_pinned_torch
def test_a_scale_per_row_needs_cublas_on_hopper_and_a_kernel_of_unknown_workspace_elsewhere():
    for gpu, workspace in (("H100", 32 * MIB), ("L4", None), ("B200", None)):
        with labkit.simulated_gpu(gpu), warnings.catch_warnings():
            warnings.simplefilter("ignore", IncompleteEstimateWarning)
            left = torch.zeros(128, 256, device="cuda").to(torch.float8_e4m3fn)
            right = torch.zeros(64, 256, device="cuda").to(torch.float8_e4m3fn).t()
            rows, columns = torch.ones(128, 1, device="cuda"), torch.ones(1, 64, device="cuda")
            before = torch.cuda.memory_allocated()
            output = torch._scaled_mm(left, right, rows, columns, out_dtype=torch.bfloat16)
            assert torch.cuda.memory_allocated() - before == output.nbytes + (workspace or 0)
            assert ("a scale per row" in labkit.gpu.unmodeled()) == (workspace is None)
