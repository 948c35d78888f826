"""labkit: the measuring tools of the course "GPU memory, byte by byte".

use_gpu, simulated_gpu   choose which GPU device "cuda" is: the machine's own, or a simulated one
one_rank                 makes this process one rank of N, to see what one of many GPUs holds and sends
this_host                measures how fast this machine issues operators, for a simulated GPU's host
left_out                 names what a simulated GPU's figures don't include
Ledger                   measures memory by stage and compares it with predictions
stopwatch, seconds       measure time on the GPU with CUDA events; the mean time of several calls
host_work                represents work of the host while the GPU computes
loading                  datasets for DataLoaders with workers, whose preparation takes a declared time
Lanes                    records which work ran when: copies in one lane, matmuls in another
memory_rate, product_rate  measure the rates that the GPU reaches, in bytes and operations per second
requested                counts requested bytes, before they are rounded up to blocks
mib, MiB                 formats bytes as MiB; 2**20 bytes
guesses                  compares the reader's guesses with estimate and measurement, and keeps the score
judge                    checks the answer to an exercise
owners, saving           find which module and operator holds what forward adds; what autograd saves
keeps, layer_keeps       measure what one operator, or one layer of a model, saves for backward
Kinds                    sorts the blocks of a training step into six kinds of memory
operators, least_times      count what each operator computes and moves; estimate how long that takes at least
formulas                 estimates of memory and time
plans                    estimates of a large run: memory, traffic and time per rank under each way to shard it
models                   the course's models, with random weights
published                published figures, with their sources
plots, sweep             figures; a measurement over a range of sizes
grid                     measures at two or three sizes at once, and draws a figure with sliders
schedules                draws a pipeline's schedule
techniques               the rows of the course's summary table: what each technique saved
course_file              finds a file of the course's folder, from wherever a notebook runs
"""

from importlib import metadata as _metadata

import labkit.needs  # noqa: F401 - imported first, because it lists missing packages in one line
from labkit import formulas, guesses, models, plans, plots, published, schedules, techniques
from labkit.counters import requested
from labkit.exercise import judge
from labkit.folder import course_file
from labkit.gpu import left_out, simulated_gpu, this_host, use_gpu
from labkit.kinds import Kinds
from labkit.lanes import Lanes
from labkit.ledger import Ledger
from labkit.no_gpu_yet import advise_after_cells as _advise_after_cells
from labkit.operators import least_times, operators
from labkit.ranks import one_rank
from labkit.rates import memory_rate, product_rate
from labkit.saved import keeps, layer_keeps, owners, saving
from labkit.sliding import grid
from labkit.stopwatch import host_work, seconds, stopwatch
from labkit.sweep import sweep
from labkit.units import MIB as MiB
from labkit.units import mib

__all__ = [
    "Kinds",
    "Lanes",
    "Ledger",
    "MiB",
    "course_file",
    "formulas",
    "grid",
    "guesses",
    "host_work",
    "judge",
    "keeps",
    "layer_keeps",
    "least_times",
    "left_out",
    "memory_rate",
    "mib",
    "models",
    "one_rank",
    "operators",
    "owners",
    "plans",
    "plots",
    "product_rate",
    "published",
    "requested",
    "saving",
    "schedules",
    "seconds",
    "simulated_gpu",
    "stopwatch",
    "sweep",
    "techniques",
    "this_host",
    "use_gpu",
]

try:
    __version__ = _metadata.version("simgpu")  # the distribution that holds both packages
except _metadata.PackageNotFoundError:  # run from a folder, without an installed distribution
    __version__ = "0+unknown"

_advise_after_cells()
