"""Nested tensors on the simulated GPU: jagged ones are modelled, others are refused by name."""

import pytest
import torch

import labkit


def jagged(size=16):
    rows = torch.randn(8, 2, size, device="cuda")
    return torch.nested.nested_tensor_from_jagged(rows, torch.tensor([0, 3, 8], device="cuda"))


def test_a_jagged_one_is_where_its_values_are():
    with labkit.simulated_gpu("H100"):
        nested = jagged()
        assert nested.device == nested.values().device == torch.device("cuda", 0)
        assert nested.is_cuda
        layer = torch.nn.Linear(16, 4, device="cuda")
        layer(nested).values().sum().backward()
        assert layer.weight.grad.shape == (4, 16)


def test_what_is_not_modelled_is_named():
    with labkit.simulated_gpu("H100"):
        heads = jagged().transpose(1, 2)
        with pytest.raises(NotImplementedError, match="attention of nested tensors"):
            torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        with pytest.raises(NotImplementedError, match="layout=torch"):
            torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], device="cuda")
    strided = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    assert strided.size(0) == 2
