"""Numbers that a dtype cannot hold are refused where CUDA's kernels refuse them, in PyTorch's words."""

import pytest
import torch

import simgpu

LOWEST = torch.finfo(torch.float32).min
WRITES = {
    "masked_fill": lambda x, mask, value: x.masked_fill(mask, value),
    "masked_fill_": lambda x, mask, value: x.masked_fill_(mask, value),
    "masked_fill by a tensor of the host": lambda x, mask, value: x.masked_fill(
        mask, torch.tensor(value, dtype=torch.float64)
    ),
    "fill_": lambda x, mask, value: x.fill_(value),
    "full": lambda x, mask, value: torch.full((3,), value, dtype=x.dtype, device="cuda"),
    "full_like": lambda x, mask, value: torch.full_like(x, value),
    "index_fill": lambda x, mask, value: x.index_fill(0, torch.tensor([1]).cuda(), value),
}


@pytest.fixture(autouse=True)
def gpu():
    with simgpu.simulated_gpu("H100") as gpu:
        yield gpu


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("dtype", "value", "kind"),
    [
        (torch.bfloat16, LOWEST, "c10::BFloat16"),
        (torch.float16, 1e5, "c10::Half"),
        (torch.float32, -1e39, "float"),
        (torch.int32, 2.0**31, "int"),
    ],
)
def test_what_does_not_fit_is_refused(write, dtype, value, kind):
    """As the oracle, torch 2.13.0, refuses transformers' DeBERTa under autocast."""
    mask = torch.tensor([True, False, True]).cuda()
    with pytest.raises(RuntimeError, match=f"value cannot be converted to type {kind} without overflow"):
        write(torch.zeros(3, dtype=dtype, device="cuda"), mask, value)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.bfloat16, float("-inf")), (torch.float32, LOWEST), (torch.uint8, 255), (torch.bool, 7)]
)
def test_what_fits_is_written(write, dtype, value):
    mask = torch.tensor([True, False, True]).cuda()
    assert write(torch.zeros(3, dtype=dtype, device="cuda"), mask, value).dtype == dtype


def test_nothing_is_written_into_nothing():
    assert torch.zeros(0, dtype=torch.float16, device="cuda").fill_(1e39).numel() == 0


def test_a_complex_number_of_pythons_has_a_conjugate_in_backward():
    """`1j * x`, as S4 and its kin have it. The oracle's bytes."""
    x = torch.rand(1000, device="cuda", requires_grad=True)
    (1j * x).abs().sum().backward()
    assert x.grad.dtype == torch.float32
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (8192, 29696)
