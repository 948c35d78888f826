"""Operators that CUDA makes of others by PyTorch's C++ for any device, rules that hold for out= and in place, and what
is refused because its memory follows from values."""

import pytest
import torch

import labkit
from simgpu.errors import NotModelledError, NoValueError
from simgpu.op_info import composite_explicit
from simgpu.op_info.inplace_out_variants import variants
from simgpu.ops import rule_for

aten = torch.ops.aten


def test_which_operators_are_taken_apart():
    apart = (aten.dist.default, aten.masked_scatter.default, aten.rsub.Scalar, aten.index_fill.int_Scalar)
    whole = (
        aten.mm.default,
        aten.clone.default,
        aten._foreach_add.List,
        aten._grouped_mm.default,
        aten.sum.dim_IntList,
    )
    assert [composite_explicit.on_gpu_too(one) for one in (*apart, *whole)] == [True] * 4 + [False] * 5


def test_rules_hold_for_what_runs_the_same_code():
    assert set(variants(aten.renorm.default)) == {aten.renorm.out, aten.renorm_.default}
    assert list(variants(aten.count_nonzero.dim_IntList)) == []  # its out= is computed apart and copied
    assert rule_for(aten.cumsum_.default) is rule_for(aten.cumsum.default)
    assert rule_for(aten.mse_loss.out) is None  # it keeps the losses' storage, which out= has not


def test_a_number_first():
    with labkit.simulated_gpu("H100"):
        x = torch.arange(3, device="cuda")
        assert (2 - x).dtype == torch.int64
        assert (2.5 - x).dtype == torch.float32
        assert torch.rsub(x, 2).dtype == torch.int64
        assert torch.ops.aten.rsub.Scalar(x.bfloat16(), 2).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: torch.mode(x), NoValueError, "how many of them differ"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), NotModelledError, "quantize"),
    ],
)
def test_what_follows_from_values_is_refused_by_name(call, error, text):
    with labkit.simulated_gpu("H100"):
        x = torch.zeros(3000, 3000, device="cuda")
        before = torch.cuda.memory_allocated()
        with pytest.raises(error, match=text):
            call(x)
        assert torch.cuda.memory_allocated() == before


def test_zeros_without_memory():
    with labkit.simulated_gpu("H100"):
        zeros = torch._efficientzerotensor(100, device="cuda")
        assert zeros.shape == (100,)
        assert torch.cuda.memory_allocated() == 0
