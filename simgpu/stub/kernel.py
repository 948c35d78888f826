"""A Jupyter kernel on the stub engine, for notebooks: `simgpu engine kernel`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from simgpu.gpus import specs
from simgpu.stub import engine, nvidia_smi
from simgpu.stub.engine import Engine, EngineError

ROOT = Path(__file__).parents[2]
RUNTIME = "SIMGPU_STUB_RUNTIME"
"""The environment variable that names the stub of the CUDA runtime to the kernel."""


def install(gpu: str, version: str | None = None) -> str:
    """Installs the kernel of a GPU for this user, and returns what it is called and where it is.

    Raises ValueError for an unknown GPU, and EngineError where the engine or Jupyter is not installed.
    """
    spec = specs.spec(gpu)
    build = engine.find(version)
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError:
        raise EngineError("a Jupyter kernel needs jupyter_client and ipykernel: pip install ipykernel") from None
    name = "simgpu-" + re.sub(r"[^a-z0-9]+", "-", f"{spec.key}-torch-{build.version}".lower())
    shown = f"{spec.key}: PyTorch's CUDA code without a GPU (torch {build.version})"
    described = {
        "argv": [sys.executable, "-m", "simgpu.running.stub.kernel", "-f", "{connection_file}"],
        "display_name": shown,
        "language": "python",
        "env": _environment(build, gpu),
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
        place = KernelSpecManager().install_kernel_spec(folder, name, user=True)
    return f"Installed the Jupyter kernel {name} ({shown}) in {place}."


def _environment(build: Engine, gpu: str) -> dict[str, str]:
    """The variables of the kernel's process that differ from Jupyter's own."""
    stubs = build.stubs(extensions=True)
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH") if name in os.environ}
    environ = engine.paths(build, stubs, {**kept, **engine.device(build, stubs, gpu)}, str(ROOT))
    environ |= engine.caches(build)
    environ["PATH"] = os.pathsep.join([str(nvidia_smi.folder()), os.environ.get("PATH", os.defpath)])
    environ[RUNTIME] = str(next(stubs.glob("libcudart.so.*")))
    return environ
