"""labkit: the measuring tools of the course "GPU memory, byte by byte".

use_gpu, simulated_gpu   choose which GPU device "cuda" is: the machine's own, or a simulated one
one_rank                 makes this process one rank of N, to see what one of many GPUs holds and sends
this_host                measures how fast this machine issues operators, for a simulated GPU's host
unmodeled                 names what a simulated GPU's figures don't include
Ledger                   measures memory by stage and compares it with predictions
requested                counts requested bytes, before they are rounded up to blocks
nvidia_smi               reads the bytes used on the GPU by all processes, as nvidia-smi shows them
stopwatch, seconds       measure time on the GPU with CUDA events; the mean time of several calls
host_work                represents work of the host while the GPU computes
memory_rate, product_rate  measure the rates that the GPU reaches, in bytes and operations per second
mib, MiB                 formats bytes as MiB; 2**20 bytes
guesses                  compares the reader's guesses with estimate and measurement, and keeps the score
judge                    checks the answer to an exercise
formulas                 the allocator's rules as plain arithmetic: blocks, segments, workspaces
published                published figures, with their sources
plots                    figures
techniques               the rows of the course's summary table: what each technique saved
course_file              finds a file of the course's folder, from wherever a notebook runs

What serves one chapter or a few (models, estimates, drawings) is in notebooks/helpers, which imports labkit.
"""

import sys as _sys
from importlib import metadata as _metadata

import labkit.needs  # noqa: F401 - imported first, because it lists missing packages in one line
from labkit import formulas, guesses, plots, published, techniques
from labkit.exercise import judge
from labkit.gpu import advise_after_cells as _advise_after_cells
from labkit.gpu import nvidia_smi, one_rank, requested, simulated_gpu, this_host, unmodeled, use_gpu
from labkit.ledger import Ledger
from labkit.published import course_file
from labkit.timing import host_work, memory_rate, product_rate, seconds, stopwatch
from labkit.units import MiB, mib

__all__ = [
    "Ledger",
    "MiB",
    "course_file",
    "formulas",
    "guesses",
    "host_work",
    "judge",
    "memory_rate",
    "mib",
    "nvidia_smi",
    "one_rank",
    "plots",
    "product_rate",
    "published",
    "requested",
    "seconds",
    "simulated_gpu",
    "stopwatch",
    "techniques",
    "this_host",
    "unmodeled",
    "use_gpu",
]

try:
    __version__ = _metadata.version("simgpu")  # the distribution that holds both packages
except _metadata.PackageNotFoundError:  # run from a folder, without an installed distribution
    __version__ = "0+unknown"


def _find_helpers() -> None:
    """Lets a notebook import the course's helpers also where they are not next to it: a copy, an installed package.

    The folder comes last on the path, so that a reader's own modules are found first.
    """
    try:
        folder = str(course_file("notebooks/helpers/__init__.py").parents[1])
    except FileNotFoundError:  # the first cell that needs them raises ModuleNotFoundError
        return
    if folder not in _sys.path:
        _sys.path.append(folder)


_advise_after_cells()
_find_helpers()
