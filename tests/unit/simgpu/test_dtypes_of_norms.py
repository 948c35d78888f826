"""Norms with weights of another dtype: the errors are PyTorch 2.13's CUDA host code's, under stub libraries."""

import pytest
import torch
import torch.nn.functional as F

import simgpu


@pytest.fixture(autouse=True)
def gpu():
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    with simgpu.simulated_gpu("H100"):
        yield
    torch.backends.cudnn.enabled = enabled


def ones(size, dtype):
    return torch.ones(size, device="cuda", dtype=dtype)


def batch_norm_into(x, weight, bias):
    statistics = torch.promote_types(x.dtype, torch.float32)
    names = {"out": x.dtype, "save_mean": statistics, "save_invstd": statistics}
    outs = {name: torch.empty(0, device="cuda", dtype=dtype) for name, dtype in names.items()}
    return torch.ops.aten.native_batch_norm.out(x, weight, bias, None, None, True, 0.1, 1e-5, **outs)[0]


HALF, BFLOAT, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
SHARED, PARAMETER = "all inputs must share same datatype", "expect parameter to have scalar type of Float"


@pytest.mark.parametrize(
    ("given", "weight", "bias", "layer", "group", "batch"),
    [
        (FLOAT, FLOAT, FLOAT, "", "", ""),
        (FLOAT, BFLOAT, BFLOAT, "Float but found BFloat16", PARAMETER, "weight to have type Float but got BFloat16"),
        (FLOAT, FLOAT, HALF, "Float but found Half", "Float but found Half", "bias to have type Float but got Half"),
        (BFLOAT, FLOAT, FLOAT, "BFloat16 but found Float", "BFloat16 but found Float", ""),
        (BFLOAT, FLOAT, BFLOAT, "BFloat16 but found Float", PARAMETER, "bias to have type Float but got"),
        (HALF, DOUBLE, DOUBLE, "Half but found Double", PARAMETER, "weight to have type Float but got Double"),
        (DOUBLE, FLOAT, FLOAT, "Double but found Float", SHARED, "weight to have type Double but got Float"),
    ],
)
def test_weights_of_another_dtype(given, weight, bias, layer, group, batch):
    x = torch.randn(2, 8, 16, device="cuda", dtype=given)
    for said, norm in (
        (layer, lambda: F.layer_norm(x, (16,), ones(16, weight), ones(16, bias))),
        (group, lambda: F.group_norm(x, 4, ones(8, weight), ones(8, bias))),
        (batch, lambda: F.batch_norm(x, None, None, ones(8, weight), ones(8, bias), True)),
        (batch, lambda: batch_norm_into(x, ones(8, weight), ones(8, bias))),
    ):
        if said:
            with pytest.raises(RuntimeError, match=said):
                norm()
        else:
            assert norm().dtype == given


def test_rms_norm_takes_any():
    assert F.rms_norm(ones((4, 16), FLOAT), (16,), ones(16, BFLOAT)).dtype == FLOAT
