"""Prints advice after a cell that failed with PyTorch's own error for device="cuda", before `use_gpu` has run.

labkit does not change PyTorch's error. It registers a function that IPython calls after each cell.
"""

import sys

from labkit.gpu import simulator_is_on

# from torch.cuda._lazy_init and CUDA's own initialisation (torch 2.11 to 2.13), without a GPU or a driver
_SAID = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")
ADVICE = 'labkit: "cuda" is no GPU here until the line labkit.use_gpu("A100-80GB") has run: run that first.'


def advise_after_cells() -> None:
    """Prints the advice in IPython after each cell that failed because there is no GPU; does nothing elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        shell.events.register("post_run_cell", _after)


def _after(result) -> None:
    if wanted(result.error_in_exec):
        print(ADVICE)


def wanted(error: BaseException | None) -> bool:
    """Returns whether an error is PyTorch's for a missing CUDA device, while no simulated GPU is in use."""
    return (
        isinstance(error, (AssertionError, RuntimeError))
        and any(text in str(error) for text in _SAID)
        and not simulator_is_on()
    )
