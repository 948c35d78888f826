"""labkit: what the course "GPU memory, byte by byte" measures with.

use_gpu, simulated_gpu   which device "cuda" is: the machine's GPU, or a simulated one
one_rank                 this process as one rank of N: what one of many GPUs holds and sends
this_host                how fast this machine issues operators, for a simulated GPU's host
left_out                 what a simulated GPU's figures leave out, by name
Ledger                   memory by stage, measured and compared with predictions
stopwatch, seconds       time on the GPU, by events; the mean of several calls
host_work                what the host does meanwhile
loading                  datasets for DataLoaders with workers, whose preparation takes a declared time
Lanes                    which work ran when: copies in one lane, multiplications in another
memory_rate, product_rate  what the GPU reaches, measured: bytes and operations a second
requested                bytes asked for, before they are rounded up to blocks
mib, MiB                 a number of bytes as text; 2**20 bytes
guesses                  the reader's guesses beside paper and measurement, and the score
judge                    what the answer to an exercise is worth
owners, saving           which module and operator keeps what forward adds; what autograd saves
keeps, layer_keeps       what one operator, or one layer of a model, keeps for backward
Kinds                    the six kinds of memory over a training step
operators, on_paper      what each operator of a piece of work computes and moves; how long that takes at least
formulas                 predictions on paper
plans                    how a large run is cut: memory, traffic and time of a rank, on paper
models                   the course's models, with random weights
published                figures that others published, with their sources
plots, sweep             figures; a measurement over a range of sizes
grid                     a measurement over two or three sizes at once, and a figure to slide through it
schedules                the figure of a pipeline's schedule
techniques               what each way of saving memory saved: the rows of the course's summary table
course_file              a file of the course's folder, from wherever a notebook is run
"""

from importlib import metadata as _metadata

import labkit.needs  # noqa: F401 - before all others: it says in one line what is not installed
from labkit import formulas, guesses, models, plans, plots, published, schedules, techniques
from labkit.counters import requested
from labkit.exercise import judge
from labkit.folder import course_file
from labkit.gpu import left_out, simulated_gpu, this_host, use_gpu
from labkit.kinds import Kinds
from labkit.lanes import Lanes
from labkit.ledger import Ledger
from labkit.no_gpu_yet import advise_after_cells as _advise_after_cells
from labkit.operators import on_paper, operators
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
    "left_out",
    "memory_rate",
    "mib",
    "models",
    "on_paper",
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
except _metadata.PackageNotFoundError:  # run from a folder that nobody has installed
    __version__ = "0+unknown"

_advise_after_cells()
