"""What only CUDA's libraries know on the stub engine: workspaces of no bytes, and PyTorch's own recurrent networks."""

import pytest

import simgpu
from simgpu.stub import engine
from simgpu.unmodeled import CUDNN_RNN, CUFFT, SOLVERS

pytestmark = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

SOLVING = """
import torch
a = torch.randn(64, 64, device="cuda")
for name in "cholesky_ex", "qr", "svd", "eigh", "svdvals", "lu_factor", "inv_ex", "pinv", "ldl_factor":
    getattr(torch.linalg, name)(a)
torch.linalg.eigh(a.expand(8, 64, 64).contiguous())
torch.linalg.lstsq(a, a)
"""
TRANSFORMING = """
import torch
a = torch.randn(64, 64, device="cuda")
torch.fft.ifft(torch.fft.fft(a)), torch.fft.rfft2(a)
"""
RECURRENT = """
import torch
for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
    model = kind(32, 64, 2, dropout=0.1).cuda()
    model(torch.randn(5, 3, 32, device="cuda"))[0].sum().backward()
"""


@pytest.mark.parametrize(("code", "unknown"), [(SOLVING, SOLVERS), (TRANSFORMING, CUFFT), (RECURRENT, CUDNN_RNN)])
def test_a_size_that_only_the_library_knows_is_0_and_is_named(code, unknown, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(code)
    report = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="RTX 3090")
    assert report.completed, report.ended
    how = "about" if unknown == CUDNN_RNN else "at least"  # PyTorch's own network may use more than cuDNN's
    assert report.unmodeled.startswith(f"{how}: without ") and unknown in report.unmodeled


def test_recurrent_networks_are_those_of_the_meta_engine(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(RECURRENT)
    stub = simgpu.run(path, engine="stub", torch_version=engine.DEFAULT_VERSION, gpu="RTX 3090")
    meta = simgpu.run(path, engine="meta", gpu="RTX 3090")
    assert (stub.peak, stub.reserved, stub.outcome) == (meta.peak, meta.reserved, meta.outcome)
