"""Which device, versions, settings and commit a recording is of."""

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

from simgpu.torch_face.build import INSTALLED

CHECKOUT = Path(__file__).parents[2]
GPU = "a GPU"
SIMULATED = "the simulated GPU; no GPU was involved"
STUBS = "PyTorch's CUDA host code under stub libraries; no GPU was involved"
CHANGED = ", with changes"  # after a commit: what ran is not what was committed

# A recording that lacks one of these could not be told from another, nor made again.
WANTED = ("made by", "gpu", "total memory", "driver", "torch", "cuda", "cudnn", "transformers", "date", "commit")
# What all recordings of a folder have in common. The date may be another: a run that was interrupted goes on later.
SHARED = tuple(key for key in WANTED if key != "date")
# They change how much memory is taken, or how long a step takes: recordings are made without them, but for a workload's
# own settings.
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
    """A recording would not say what it is of."""


def of_device(commit: str | None = None) -> dict[str, object]:
    """The provenance of what "cuda" is in this process: None for what cannot be told. It touches the device.

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
    """What one recording has besides: the workload's source and arguments, and the variables it ran under."""
    return {"source": digest(workload), "arguments": _arguments(workload), "settings": dict(settings)}


def check(provenance: Mapping[str, object]) -> None:
    """Raises ProvenanceError, naming it, if something that every recording must say is missing."""
    missing = [key for key in WANTED if not provenance.get(key)]
    if missing:
        hint = "; outside a git checkout, --commit says which one this is" if "commit" in missing else ""
        raise ProvenanceError(f"nothing is recorded without its provenance; missing: {', '.join(missing)}{hint}")


def check_same(folder: Path, kept: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises ProvenanceError if the recordings that lie in `folder` are of something else than this run."""
    differing = [f"{key} {kept.get(key)!r} there, {now.get(key)!r} now" for key in SHARED if kept.get(key) != now[key]]
    if differing:
        raise ProvenanceError(
            f"{folder} holds recordings of another kind, choose another --out: {'; '.join(differing)}"
        )


def digest(workload: Callable) -> str:
    """Tells whether a trace is of this very workload: a hash of the module that defines it, however laid out; or what
    the workload says itself, as `source`."""
    if hasattr(workload, "source"):
        return workload.source
    while isinstance(workload, partial):
        workload = workload.func
    source = re.sub(r"\s|,(?=\s*[)\]}])", "", Path(inspect.getfile(workload)).read_text(encoding="utf-8"))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _arguments(workload: Callable) -> dict[str, str]:
    """The arguments of a partial, as text that is the same in every process."""
    if not isinstance(workload, partial):
        return {}
    return {name: getattr(value, "__qualname__", None) or str(value) for name, value in workload.keywords.items()}


def commit_of(given: str | None = None, checkout: Path = CHECKOUT) -> str | None:
    """The commit that simgpu is at, followed by `CHANGED` if its files differ from it; `given` where there is no git.

    Raises ProvenanceError if there is one, and it is not the one that is given.
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
    """Whether "cuda" is a simulated GPU. On a real one nothing of the simulator is imported."""
    machine = sys.modules.get("simgpu.machine")
    return machine is not None and machine.current() is not None


def _made_by() -> str:
    """Who answers for "cuda": a device that adds up is a GPU, the stub libraries read back zeros."""
    if is_simulated():
        return SIMULATED
    return GPU if torch.ones(2, device="cuda").sum().item() == 2 else STUBS


def _driver() -> str | None:
    import pynvml  # here: this file can be read where only a recorder would want it

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
