"""What this project promises of GPU memory, kept by its ordinary tests, on machines without a GPU.

pytest -p simgpu.pytest_plugin        # where simgpu is installed, the plugin is found without -p
"""

import os

import pytest
from model import model, training_step

GPU = os.environ.get("GPU", "T4")


@pytest.mark.gpu_memory(gpu=GPU, peak="2.2 GiB")
def test_a_training_step_keeps_within_its_memory():
    training_step(model().to("cuda"), batch=8, length=1024)


def test_a_step_frees_what_it_took(simulated_gpu):
    import torch

    training_step(model().to("cuda"), batch=1, length=128)
    assert simulated_gpu.simulated
    assert torch.cuda.memory_allocated() < 64 * 2**20
