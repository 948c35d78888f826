"""Rates that a GPU reaches: below the peak on paper, and another GPU's are others."""

import pytest
import torch

from labkit import memory_rate, product_rate, simulated_gpu
from simgpu.gpus.specs import spec


@pytest.mark.parametrize("name", ["T4", "A100-80GB", "H100"])
def test_rates_are_near_the_peak_on_paper(name):
    with simulated_gpu(name):
        bandwidth, flops = memory_rate(), product_rate(torch.float16)
        assert torch.cuda.memory_allocated() <= 2**26, "the matrices are freed; a workspace is left"
    paper = spec(name)
    assert 0.5 < bandwidth / paper.bandwidth <= 1
    assert 0.4 < flops / paper.peak_flops["float16"] <= 1


def test_tensor_cores_are_faster():
    with simulated_gpu("A100-80GB"):
        assert product_rate(torch.bfloat16) > 10 * product_rate(torch.float32)
