"""Without a GPU, real or simulated, the front says what to do."""

import os

import pytest
import torch

import labkit
from labkit import gpu
from labkit.ledger import Ledger


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_ledger_wants_a_gpu():
    with pytest.raises(RuntimeError, match=r"call labkit\.use_gpu"):
        Ledger()


@pytest.mark.parametrize(
    ("real", "name", "told"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", False),
        ("NVIDIA A100 80GB PCIe", "A100-80GB", False),
        ("NVIDIA A100-SXM4-40GB", "A100-80GB", True),
        ("Tesla T4", "A100-80GB", True),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", False),
        ("NVIDIA H100 80GB HBM3", "H100", False),
    ],
)
def test_another_real_gpu_says_what_will_differ(real, name, told, monkeypatch, capsys):
    monkeypatch.delenv("LABKIT_GPU", raising=False)
    monkeypatch.setenv(gpu.UNIFIED, "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "_real", lambda: gpu.GPU(False, real, 16 * 2**30))
    labkit.use_gpu(name)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Running on {real}, 16.00 GiB."
    assert [f"LABKIT_GPU={name} in the environment" in line for line in lines[1:]] == [True] * told


@pytest.mark.parametrize(
    ("version", "before", "after"), [("2.11.0+cpu", None, "1"), ("2.11.0", "0", "0"), ("2.12.1", None, None)]
)
def test_on_torch_2_11_cublaslt_shares_cublas_workspace(version, before, after, monkeypatch, capsys):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setenv(gpu.UNIFIED, before or "")
    if before is None:
        monkeypatch.delenv(gpu.UNIFIED)
    gpu._share_workspace()
    assert os.environ.get(gpu.UNIFIED) == after
    assert (gpu.UNIFIED in capsys.readouterr().out) == (before != after)
