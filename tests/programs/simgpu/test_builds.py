"""Advice where torchvision or torchaudio is a CUDA build and torch is not, and where Triton is not installed."""

import importlib.util
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu.running import builds

CPU = not list((Path(torch.__file__).parent / "lib").glob("*torch_cuda*"))


@pytest.mark.skipif(not CPU, reason="this PyTorch is a CUDA build")
@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("operator torchvision::nms does not exist"), "torchvision"),  # torchvision 0.28 with torch 2.13
        (
            OSError("libc10_cuda.so: cannot open shared object file: No such file or directory"),
            "torchvision torchaudio",
        ),
        (
            OSError("libcudart.so.13: cannot open shared object file: No such file or directory"),
            "torchvision torchaudio",
        ),
    ],
)
def test_the_error_behind_an_error_is_found(error, name):
    outer = OSError("Could not load this library: _torchaudio.abi3.so")  # torchaudio 2.11 raises it from the second
    outer.__cause__ = error
    for one in (error, outer):
        assert builds.advice(one).endswith(f"--index-url {builds.INDEX} {name}")


def test_other_errors_have_other_reasons():
    for error in (
        None,
        RuntimeError("operator mine::nms does not exist"),
        OSError("libfoo.so: cannot open shared object"),
    ):
        assert builds.advice(error) == ""


@pytest.mark.skipif(not CPU, reason="this PyTorch is a CUDA build")
def test_the_page_says_what_to_install(tmp_path):
    """As torchvision's own registration of a meta kernel fails where its library did not load."""
    path = tmp_path / "train.py"
    path.write_text("import torch\ntorch.library.register_fake('torchvision::nms')(lambda *args: None)")
    report = simgpu.run(str(path))
    assert report.status == 2
    assert f"pip install --force-reinstall --no-deps --index-url {builds.INDEX} torchvision" in str(report)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
@pytest.mark.parametrize(
    "program",
    [
        "import triton\n@triton.jit\ndef kernel(x): pass",
        "import triton.language as tl",
        "from triton import autotune",
        "try:\n    import triton\nexcept ImportError as error:\n    raise RuntimeError('no kernels') from error",
        "raise ImportError('mamba needs triton >= 3.0: pip install triton')",
    ],
)
def test_a_program_that_needs_triton_is_sent_to_the_other_engine(tmp_path, program):
    path = tmp_path / "train.py"
    path.write_text(program)
    report = simgpu.run(str(path))
    assert report.status == 2
    assert "Triton is not installed" in str(report) and "simgpu run --engine stub" in str(report)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_a_program_that_does_without_triton_gets_no_advice(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("try:\n    import triton\nexcept ImportError:\n    triton = None\nimport tritonless_module")
    report = simgpu.run(str(path))
    assert report.status == 2 and "Triton" not in str(report)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("from flash_attn_nowhere import x", ""),
        ("import flash_attn.nowhere", "flash_attn"),
        ("raise ImportError('the package flash_attn seems to be not installed')", "flash_attn"),  # as in transformers
        ("from apex import amp", "apex"),
        ("from causal_conv1d import causal_conv1d_fn", "causal_conv1d"),
        ("raise ImportError('No module named nothing_of_the_kind')", ""),
    ],
)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("flash_attn", "apex", "causal_conv1d")), reason="one is installed"
)
def test_an_extension_that_is_compiled_where_it_is_installed_is_named(tmp_path, program, name):
    path = tmp_path / "train.py"
    path.write_text(program)
    report = simgpu.run(str(path), engine="meta")
    assert report.status == 2
    assert ("no wheel of it" in str(report)) == bool(name)
    assert not name or f"{name} is compiled where it is installed" in " ".join(str(report).split())
