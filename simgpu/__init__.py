"""A simulated GPU: PyTorch's CUDA memory, to the byte, without a GPU.

simulated_gpu    makes "cuda" a simulated GPU inside the `with`
coverage         returns what is known of an operator: proved, or excluded, and why
traffic          returns what this rank's collectives have moved, by kind
fit              estimates whether a model's training fits on a GPU, and what would make it fit
one_rank         makes the process one rank of N; torch.distributed answers as if the others existed
record_rank      records what one rank does and when, for `together`
together         combines several ranks into one timeline that shows which rank waits for which
host_slowness    measures how fast this machine issues operators, relative to the clock's host
run              runs an unmodified script on a simulated GPU and reports on one page what it needs

Importing this package does not import torch: `simgpu.allocator`, the caching allocator, works without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from simgpu.distributed.log import record_rank
    from simgpu.distributed.one_rank import one_rank
    from simgpu.distributed.timeline import together
    from simgpu.distributed.world import traffic
    from simgpu.fitting.fit import fit
    from simgpu.host_calibration import host_slowness
    from simgpu.running.run import run
    from simgpu.session import SimulatedGPU, simulated_gpu
    from simgpu.unmodeled import IncompleteEstimateWarning, coverage

_PUBLIC = {
    "IncompleteEstimateWarning": "simgpu.unmodeled",
    "SimulatedGPU": "simgpu.session",
    "coverage": "simgpu.unmodeled",
    "fit": "simgpu.fitting.fit",
    "host_slowness": "simgpu.host_calibration",
    "load_ipython_extension": "simgpu.notebook",  # %load_ext simgpu calls it
    "one_rank": "simgpu.distributed.one_rank",
    "record_rank": "simgpu.distributed.log",
    "run": "simgpu.running.run",
    "simulated_gpu": "simgpu.session",
    "together": "simgpu.distributed.timeline",
    "traffic": "simgpu.distributed.world",
}

__all__ = [
    "IncompleteEstimateWarning",
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
    """Imports public names when they are first used; the version is the installed distribution's."""
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
    except metadata.PackageNotFoundError:  # run from a folder, without an installed distribution
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, "__version__"])
