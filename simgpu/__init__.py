"""A simulated GPU: PyTorch's CUDA memory, to the byte, without a GPU.

simulated_gpu    "cuda" is a simulated GPU inside the `with`
coverage         what is known of an operator: proved, or left out, and why
traffic          what this rank's collectives have moved, by kind
fit              whether a model's training fits on a GPU, and what would make it
one_rank         the process is one rank of N, and torch.distributed answers as if the others were there
record_rank      the log of what one rank does when, for
together         several ranks, played against each other: who waits for whom
host_slowness    how fast this machine issues operators, beside the host that the clock assumes
run              a script, unmodified, on a simulated GPU, and a page of what it takes

Importing this package imports no torch: `simgpu.memory`, the caching allocator, works without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from simgpu.fitting.fit import fit
    from simgpu.left_out import LeftOutWarning, coverage
    from simgpu.ranks.log import record_rank
    from simgpu.ranks.timeline import together
    from simgpu.ranks.world import one_rank, traffic
    from simgpu.running.run import run
    from simgpu.session import SimulatedGPU, simulated_gpu
    from simgpu.this_host import host_slowness

_PUBLIC = {
    "LeftOutWarning": "simgpu.left_out",
    "SimulatedGPU": "simgpu.session",
    "coverage": "simgpu.left_out",
    "fit": "simgpu.fitting.fit",
    "host_slowness": "simgpu.this_host",
    "one_rank": "simgpu.ranks.world",
    "record_rank": "simgpu.ranks.log",
    "run": "simgpu.running.run",
    "simulated_gpu": "simgpu.session",
    "together": "simgpu.ranks.timeline",
    "traffic": "simgpu.ranks.world",
}

__all__ = [
    "LeftOutWarning",
    "SimulatedGPU",
    "coverage",
    "fit",
    "host_slowness",
    "one_rank",
    "record_rank",
    "run",
    "simulated_gpu",
    "together",
    "traffic",
]


def __getattr__(name: str):
    """Public names are imported when they are first used; the version is the installed distribution's."""
    if name == "__version__":
        return _version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("simgpu")
    except metadata.PackageNotFoundError:  # run from a folder that nobody has installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
