"""A simulated GPU: PyTorch's CUDA memory, to the byte, without a GPU.

simulated_gpu    "cuda" is a simulated GPU inside the `with`
coverage         what is known of an operator: proved, or left out, and why
fit              whether a model's training fits on a GPU, and what would make it
host_slowness    how fast this machine issues operators, beside the host that the clock assumes
run              a script, unmodified, on a simulated GPU, and a page of what it takes

Importing this package imports no torch: `simgpu.memory`, the caching allocator, works without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.fitting.fit import fit
    from simgpu.left_out import LeftOutWarning, coverage
    from simgpu.running.run import run
    from simgpu.session import SimulatedGPU, simulated_gpu
    from simgpu.this_host import host_slowness

_PUBLIC = {
    "LeftOutWarning": "simgpu.left_out",
    "SimulatedGPU": "simgpu.session",
    "coverage": "simgpu.left_out",
    "fit": "simgpu.fitting.fit",
    "host_slowness": "simgpu.this_host",
    "run": "simgpu.running.run",
    "simulated_gpu": "simgpu.session",
}

__all__ = ["LeftOutWarning", "SimulatedGPU", "coverage", "fit", "host_slowness", "run", "simulated_gpu"]


def __getattr__(name: str):
    """Public names are imported when they are first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
