"""What else runs on the stub engine: tests with a limit, a notebook's kernel, and `simgpu.fit`."""

import json
import os
import subprocess
import sys

import pytest

import simgpu
from simgpu.fitting.plan import Plan
from simgpu.stub import engine

NEEDS_ENGINE = pytest.mark.skipif(
    bool(engine.supported()) or engine.unpacked(engine.DEFAULT_VERSION) is None,
    reason="the stub engine of torch 2.13.0 is not installed: simgpu engine install --torch 2.13.0",
)

TESTS = """
import pytest, torch

@pytest.fixture
def weights():
    return torch.ones(2**20, device="cuda")

@pytest.mark.gpu_memory(gpu="T4", peak={limit})
def test_it(weights):
    assert torch.cuda.get_device_name() == "Tesla T4"
    (weights * 2).sum()

def test_on_the_host():
    assert not torch.cuda.is_available()
"""


@NEEDS_ENGINE
@pytest.mark.parametrize(("limit", "outcome"), [("'16 MiB'", "2 passed"), ("'6 MiB'", "1 failed, 1 passed")])
def test_a_test_with_a_limit(tmp_path, limit, outcome):
    (tmp_path / "test_it.py").write_text(TESTS.replace("{limit}", limit))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu-engine", "stub", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert outcome in done.stdout, done.stdout + done.stderr
    if "failed" in outcome:
        assert "over the limit: on a simulated T4 the test allocates 8,3" in done.stdout
        assert "test_it.py:11 in test_it" in done.stdout


@NEEDS_ENGINE
def test_a_kernel_for_notebooks(tmp_path, monkeypatch):
    manager = pytest.importorskip("jupyter_client.manager")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "simgpu", "engine", "kernel", "--gpu", "RTX 4090"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (name,) = os.listdir(tmp_path / "kernels")
    assert name in done.stdout
    described = json.loads((tmp_path / "kernels" / name / "kernel.json").read_text())
    assert "RTX 4090" in described["display_name"]
    kernel, client = manager.start_new_kernel(kernel_name=name, startup_timeout=300)
    try:
        said: list[str] = []
        code = "import torch; x = torch.arange(4, device='cuda'); print(torch.cuda.get_device_name(), x.sum().item())"
        client.execute_interactive(
            code, timeout=300, output_hook=lambda message: said.append(message["content"].get("text", ""))
        )
        assert "NVIDIA GeForce RTX 4090 6" in "".join(said)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 512, "n_positions": 128}


@NEEDS_ENGINE
def test_fit_on_the_stub_engine(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    meta, stub = (simgpu.fit(tmp_path, batch=4, gpu="T4", engine=name) for name in ("meta", "stub"))
    for name in ("peak", "reserved", "nvidia_smi", "fits"):
        assert getattr(meta, name) == getattr(stub, name), name
    compiled = simgpu.fit(tmp_path, batch=4, gpu="T4", engine="stub", compile=True)
    assert compiled.fits and "compiled" in compiled.report.what and compiled.peak != stub.peak
    assert meta.step > 0 and stub.step == pytest.approx(meta.step, rel=0.1)
    assert 0 < compiled.step < stub.step and f"A step takes {compiled.time}." in str(compiled)


@pytest.mark.parametrize("more", [{"ranks": 2}, {"four_bit": True, "lora": 8}, {"engine": "cuda"}])
def test_what_fit_does_not_have_there(more):
    with pytest.raises(ValueError, match="engine"):
        Plan(**{"engine": "stub", **more})


def test_only_the_stub_engine_compiles():
    with pytest.raises(ValueError, match="only the stub engine compiles"):
        Plan(compile=True)
