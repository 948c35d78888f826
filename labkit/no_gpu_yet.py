"""What to do about PyTorch's own error for device="cuda" before `use_gpu`, in a line after the cell that failed.

The error comes from PyTorch, which labkit does not touch; a notebook's kernel tells labkit that a cell has ended.
"""

import sys

from labkit.gpu import simulator_is_on

# torch.cuda._lazy_init and CUDA's own initialisation (torch 2.11 to 2.13), of a machine without a GPU or a driver
_SAID = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")
ADVICE = 'labkit: "cuda" is no GPU here until the line labkit.use_gpu("A100-80GB") has run: run that first.'


def advise_after_cells() -> None:
    """In IPython, print the advice after each cell that failed for want of a GPU; elsewhere, nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        shell.events.register("post_run_cell", _after)


def _after(result) -> None:
    if wanted(result.error_in_exec):
        print(ADVICE)


def wanted(error: BaseException | None) -> bool:
    """Whether this is PyTorch's error for a CUDA device that is not there, while no simulated GPU is on."""
    return (
        isinstance(error, (AssertionError, RuntimeError))
        and any(text in str(error) for text in _SAID)
        and not simulator_is_on()
    )
