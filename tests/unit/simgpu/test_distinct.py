"""torch.unique where values are known: the oracle's figures, PyTorch's CUDA host code under stub libraries."""

# ruff: noqa: E501

import pytest
import torch

import simgpu

CASES = [
    (
        "H100",
        "_unique2",
        100003,
        "int64",
        True,
        True,
        "a800024 a800024 a800024 a1639935 f1639935 f800024 a800024 a800024 a1279 f1279 f800024 a800024 a8 a800024 a3071 f3071 f8 f800024 f800024",
    ),
    ("H100", "_unique2", 5000, "float32", False, True, "a20000 a29951 f29951 a20000 a8 a40000 a1023 f1023 f8 f20000"),
    (
        "H100",
        "unique_consecutive",
        400001,
        "int16",
        True,
        False,
        "a3200008 a1600004 a2047 f2047 f1600004 a800002 a8 a1535 f1535 f8",
    ),
    (
        "A100-80GB",
        "_unique2",
        100003,
        "int64",
        True,
        True,
        "a800024 a800024 a800024 a1645055 f1645055 f800024 a800024 a800024 a1023 f1023 f800024 a800024 a8 a800024 a3071 f3071 f8 f800024 f800024",
    ),
    (
        "A100-80GB",
        "_unique2",
        5000,
        "float32",
        False,
        True,
        "a20000 a29951 f29951 a20000 a8 a40000 a1023 f1023 f8 f20000",
    ),
    (
        "A100-80GB",
        "unique_consecutive",
        400001,
        "int16",
        True,
        False,
        "a3200008 a1600004 a1791 f1791 f1600004 a800002 a8 a1279 f1279 f8",
    ),
    ("A100-80GB", "unique_consecutive", 100000, "uint8", False, False, "a100000 a8 a1023 f1023 f8"),
]


def events(action) -> str:
    torch.cuda.memory._record_memory_history(clear_history=True, context=None)
    result = action()
    history = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    del result
    letters = {"alloc": "a", "free_completed": "f"}
    return " ".join(f"{letters[one['action']]}{one['size']}" for one in history if one["action"] in letters)


@pytest.mark.parametrize(("gpu", "operator", "n", "dtype", "inverse", "counts", "expected"), CASES)
def test_scratch_and_results(gpu, operator, n, dtype, inverse, counts, expected):
    more = () if operator == "unique_consecutive" else (True,)
    with simgpu.simulated_gpu(gpu):
        x = torch.zeros(n, dtype=getattr(torch, dtype), device="cuda")
        assert events(lambda: getattr(torch.ops.aten, operator)(x, *more, inverse, counts)) == expected


def test_a_result_is_cut_and_its_memory_is_not():
    with simgpu.simulated_gpu("H100"):
        x = torch.tensor([3, 1, 3, 2] * 500).cuda()
        before = torch.cuda.memory_allocated()
        distinct, counts = torch.unique(x, return_counts=True)
        assert distinct.shape == counts.shape == (3,)
        assert torch.cuda.memory_allocated() - before == 2 * 16384
        assert torch.unique(x[:0]).shape == (0,)


def test_values_that_are_not_known_are_refused():
    with simgpu.simulated_gpu("H100"), pytest.raises(simgpu.errors.NoValueError, match="size depends on the values"):
        torch.unique(torch.rand(8, device="cuda"))


@pytest.mark.parametrize(
    ("gpu", "dtype", "told"), [("H100", "uint8", True), ("H100", "int16", False), ("T4", "uint8", False)]
)
def test_what_differs_is_told(gpu, dtype, told):
    """The oracle's sort of 1-byte keys for compute capability 9.0 takes 34,303 B for 300,000 of them, and ours more."""
    with simgpu.simulated_gpu(gpu) as on:
        torch.unique(torch.zeros(300_000, dtype=getattr(torch, dtype)).cuda())
        assert ("torch.unique of bytes" in str(on.unmodeled)) == told
