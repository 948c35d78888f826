"""The device, versions, settings and commit of a recording."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from simgpu.torch_patches.build import INSTALLED

CHECKOUT = Path(__file__).parents[2]
GPU = "a GPU"
SIMULATED = "the simulated GPU; no GPU was involved"
STUBS = "PyTorch's CUDA host code under stub libraries; no GPU was involved"
CHANGED = ", with changes"  # follows a commit if the files that ran differ from it

# A recording without one of these could not be distinguished from another, or repeated.
WANTED = ("made by", "gpu", "total memory", "driver", "torch", "cuda", "cudnn", "transformers", "date", "commit")
# What all recordings of a folder share. The date may differ, because an interrupted run can continue later.
SHARED = tuple(key for key in WANTED if key != "date")
# These variables change the memory or the time of a step. Recordings run without them, except for a workload's own
# settings.
VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


class ProvenanceError(RuntimeError):
    """Raised if a recording would lack its provenance."""


def of_device(commit: str | None = None) -> dict[str, object]:
    """Returns the provenance of the "cuda" device in this process, with None for unknown values. It uses the device.

    `commit`: see `commit_of`.
    """
    properties = torch.cuda.get_device_properties(0)
    made_by = _made_by()
    return {
        "made by": made_by,
        "gpu": properties.name,
        "total memory": properties.total_memory,
        "driver": _driver() if made_by == GPU else "none",
        "torch": INSTALLED,
        "cuda": "none" if made_by == SIMULATED else torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() or ("none" if made_by == SIMULATED else None),
        "transformers": metadata.version("transformers"),
        "python": platform.python_version(),
        "system": platform.system(),
        "date": datetime.date.today().isoformat(),
        "commit": commit_of(commit),
        "fp32 matmul precision": torch.get_float32_matmul_precision(),
        "cudnn TF32": torch.backends.cudnn.allow_tf32,
        "cudnn benchmark": torch.backends.cudnn.benchmark,
    }


def of_workload(workload: Callable, settings: Mapping[str, str]) -> dict[str, object]:
    """Returns the further provenance of one recording: the workload's source and arguments, and its environment
    variables.
    """
    return {"source": digest(workload), "arguments": _arguments(workload), "settings": dict(settings)}


def check(provenance: Mapping[str, object]) -> None:
    """Raises ProvenanceError with the names of required values that are missing."""
    missing = [key for key in WANTED if not provenance.get(key)]
    if missing:
        hint = "; outside a git checkout, --commit says which one this is" if "commit" in missing else ""
        raise ProvenanceError(f"nothing is recorded without its provenance; missing: {', '.join(missing)}{hint}")


def check_same(folder: Path, kept: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises ProvenanceError if the recordings in `folder` have another provenance than this run."""
    differing = [f"{key} {kept.get(key)!r} there, {now.get(key)!r} now" for key in SHARED if kept.get(key) != now[key]]
    if differing:
        raise ProvenanceError(
            f"{folder} holds recordings of another kind, choose another --out: {'; '.join(differing)}"
        )


def digest(workload: Callable) -> str:
    """Returns a hash that identifies a workload: of the module that defines it, without whitespace, or its `source`."""
    if hasattr(workload, "source"):
        return workload.source
    while isinstance(workload, partial):
        workload = workload.func
    source = re.sub(r"\s|,(?=\s*[)\]}])", "", Path(inspect.getfile(workload)).read_text(encoding="utf-8"))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _arguments(workload: Callable) -> dict[str, str]:
    """Returns the arguments of a partial, as text that is the same in every process."""
    if not isinstance(workload, partial):
        return {}
    return {name: getattr(value, "__qualname__", None) or str(value) for name, value in workload.keywords.items()}


def commit_of(given: str | None = None, checkout: Path = CHECKOUT) -> str | None:
    """Returns the commit of simgpu, followed by `CHANGED` if its files differ from it; without git, `given`.

    Raises ProvenanceError if `given` does not match the commit.
    """
    known = _git(checkout, "rev-parse", "HEAD")
    if known is None:
        return given
    if given is not None and not known.startswith(given):
        raise ProvenanceError(f"--commit {given} was given, and this checkout is at {known}")
    return known + (CHANGED if _git(checkout, "status", "--porcelain", "--", "simgpu") else "")


def _git(checkout: Path, *arguments: str) -> str | None:
    if not (checkout / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def is_simulated() -> bool:
    """Returns whether "cuda" is a simulated GPU. With a real one it imports nothing of the simulator."""
    machine = sys.modules.get("simgpu.device.machine")
    return machine is not None and machine.current() is not None


def _made_by() -> str:
    """Returns what provides "cuda": a device that adds correctly is a GPU, but the stub libraries return zeros."""
    if is_simulated():
        return SIMULATED
    return GPU if torch.ones(2, device="cuda").sum().item() == 2 else STUBS


def _driver() -> str | None:
    import pynvml  # imported here, because pynvml is only needed by a recorder

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
