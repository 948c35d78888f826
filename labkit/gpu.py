"""Chooses the device that the course runs on: the GPU of this machine, or a simulated one."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pynvml
import torch

from labkit import guesses
from labkit.live_tensors import living
from labkit.units import whole_bytes

__all__ = ["current", "nvidia_smi", "one_rank", "requested", "simulated_gpu", "this_host", "unmodeled", "use_gpu"]

if TYPE_CHECKING:
    from simgpu.distributed.one_rank import one_rank as OneRank

_LISTED = 4  # tensors that a message names


@dataclass(frozen=True)
class GPU:
    """Describes the device that "cuda" means.

    `name` is "A100-80GB" for a simulated GPU, and the driver's name for a real one. `total_memory` is in bytes. `host`
    is the factor on the times of a simulated GPU's host.
    """

    simulated: bool
    name: str
    total_memory: int
    host: float = 1.0

    def __str__(self):
        if not self.simulated:
            return self.name
        return f"simulated {self.name}" + (f", host × {self.host:.3g}" if self.host != 1 else "")


def current() -> GPU:
    """Returns the device in use: the innermost simulated GPU, else the machine's own.

    Raises RuntimeError if there is neither.
    """
    machine = simulated_machine()
    if machine is not None:
        return GPU(True, machine.spec.key, machine.spec.total_memory, machine.clock.slowness)
    if torch.cuda.is_available():
        return _real()
    raise RuntimeError('no GPU is in use: call labkit.use_gpu("A100-80GB") first')


def simulated_machine() -> Any:
    """Returns the `simgpu.device.machine.Machine` that "cuda" is now, or None if "cuda" is not a simulated GPU."""
    machines = sys.modules.get("simgpu.device.machine")  # the simulator is not imported unless it is in use
    return machines.current() if machines else None


def simulator_is_on() -> bool:
    """Returns whether "cuda" is a simulated GPU now."""
    return simulated_machine() is not None


def _real() -> GPU:
    return GPU(False, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)


def another(real: str, name: str) -> bool:
    """Returns whether a real GPU, by its driver's name, differs from `name`.

    It matches if the driver's name contains each part of `name`.
    """
    return not all(part.lower() in real.lower() for part in re.split(r"[-\s]", name))


def unmodeled() -> str:
    """Returns in one line what the figures of the simulated GPU in use don't include.

    Returns "" if they include everything, and on a real GPU.
    """
    machines = sys.modules.get("simgpu.device.machine")
    machine = machines.current() if machines else None
    return "" if machine is None else str(machine.unmodeled)


def label() -> str:
    """Returns the name of the device in use for tables and figures, with what its figures don't include."""
    return " · ".join(filter(None, (str(current()), unmodeled())))


def this_host() -> float:
    """Returns how many times longer this machine takes to issue an operator than the host that the simulated clock
    assumes.

        labkit.use_gpu("H100", host=labkit.this_host())

    A result of 2 means half as fast. It times a loop of small layers on the CPU for about a second
    (simgpu/host_calibration.py), so a machine that is busy with other work appears slower than it is.
    """
    import simgpu

    return simgpu.host_slowness()


def simulated_gpu(
    name: str = "A100-80GB",
    total_memory: int | None = None,
    *,
    values: bool = False,
    host: float = 1.0,
    watch: bool = False,
):
    """Returns `simgpu.simulated_gpu`: inside the `with`, "cuda" is a simulated GPU of that name, with empty memory.

        with labkit.simulated_gpu("H100") as gpu:
            x = torch.ones(1, device="cuda")
            torch.cuda.memory_allocated()          # 512

    `total_memory` (bytes) replaces the GPU's own. With `values`, all tensors have their values, which the CPU computes
    in addition to the simulation, so that losses fall and you can look at results. `host` is the factor on the host's
    times, as returned by `this_host()`; if it is not 1, every time that labkit prints says so. With `watch`, each block
    is recorded, and `gpu.timeline()` shows them. Raises what `simgpu.simulated_gpu` raises.
    """
    import simgpu

    nbytes = None if total_memory is None else whole_bytes(total_memory)
    return simgpu.simulated_gpu(name, nbytes, values=values, host=host, watch=watch)


_notebook: Any = None  # the simulated GPU of `use_gpu`, also one that was being entered or left at an interrupt


def leave() -> None:
    """Ends the simulated GPU that `use_gpu` has entered, if there is one.

    Raises RuntimeError in a thread other than the one that entered it; that GPU then stays in use.
    """
    global _notebook
    if _notebook is not None and _notebook.is_on:
        _notebook.__exit__(None, None, None)
    _notebook = None


UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"  # aten/src/ATen/cuda/CublasHandlePool.cpp: 1, from torch 2.12 on, or 0


def _share_workspace() -> None:
    """Makes torch before 2.12 share cuBLAS's workspace with cuBLASLt, unless the environment decides that.

    Without it, a Linear with a bias allocates 1 MiB more than the course says.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12) and UNIFIED not in os.environ:
        os.environ[UNIFIED] = "1"
        print(f"{UNIFIED}=1: torch {torch.__version__} allocates for a Linear with a bias what later versions do.")


def use_gpu(name: str = "A100-80GB", *, values: bool = False, only_simulated: bool = False, host: float = 1.0) -> GPU:
    """Selects the machine's GPU if it has one, else a simulated one until the kernel ends. For a notebook's first cell.

    It prints which of the two it is, and what will differ if a real GPU is not a `name`. `values` says whether tensors
    on a simulated GPU have values, computed on the CPU; on a real one they always do. `LABKIT_GPU` in the environment
    overrides `name` and selects the simulated GPU even if there is a real one. A second call, as when the cell runs
    again, starts with an empty simulated GPU and names the tensors of the previous one that are still alive. Inside a
    `with simulated_gpu(...)`, that GPU is used. `only_simulated` selects the simulated GPU of that name on every
    machine, for a notebook about that GPU. `host` is the factor on the times of a simulated GPU's host, as returned by
    `this_host()`; it does not affect a real one.

    The notebook starts afresh too: guesses are forgotten, and tables print three decimals. On torch 2.11, cuBLASLt is
    set to share cuBLAS's workspace, which is its default from torch 2.12 on, and a line says so.
    """
    global _notebook
    _share_workspace()
    asked = name if only_simulated else os.environ.get("LABKIT_GPU")
    if _notebook is not None:
        left = living()
        leave()
        if left:
            others = f", and {len(left) - _LISTED} others" if left[_LISTED:] else ""
            names = ", ".join(one.name for one in left[:_LISTED])
            print(f"Still alive of the GPU before, and of no use on this one: {names}{others}.")
    guesses.forget()
    pd.set_option("display.precision", 3)
    if simulator_is_on():
        print(f"Running on the {current()} of a `with` around this.")
        return current()
    if asked is None and torch.cuda.is_available():
        gpu = _real()
        print(f"Running on {gpu.name}, {gpu.total_memory / 2**30:.2f} GiB.")
        if another(gpu.name, name):
            print(
                f"The outputs stored in the course are a simulated {name}'s. Yours may differ in bytes that depend on "
                "the GPU (workspaces, attention's kernel, the CUDA context), in what fits, and in times. With "
                f"LABKIT_GPU={name} in the environment a simulated one gives the stored ones."
            )
        return gpu
    _notebook = simulated_gpu(asked or name, values=values, host=host)
    gpu = _notebook.__enter__()
    torch.cuda.init()  # as a real GPU is initialised when its name is read
    have = "the CPU's values" if values else "no values"
    speed = f", a host that takes {host:.3g} times as long as the clock assumes" if host != 1 else ""
    print(f"Running on a simulated {gpu.name}, {gpu.total_memory / 2**30:.2f} GiB: exact memory, {have}{speed}.")
    return current()


def one_rank(rank: int, of: int, **more) -> OneRank:
    """Returns `simgpu.one_rank`: inside the ``with``, the process is rank `rank` of `of`, on the GPU in use.

        with labkit.one_rank(0, of=8) as me:
            torch.distributed.init_process_group("nccl")
            model = DistributedDataParallel(model)     # PyTorch's own
            print(me.traffic)                          # what this rank has sent

    The other ranks don't exist. The process group answers as if each had this rank's values, and counts the bytes. The
    memory is one rank's, on a simulated GPU and on a real one. The process group is destroyed at the end. Raises what
    `simgpu.one_rank` raises.
    """
    import simgpu

    return simgpu.one_rank(rank, of, **more)


def requested(peak: bool = False) -> int:
    """Returns the bytes that tensors and workspaces have requested, before the allocator rounds them up to blocks.

    >>> x = torch.zeros(1000, device="cuda")
    >>> requested(), torch.cuda.memory_allocated()
    (4000, 4096)

    The figure includes neither rounding nor the remainder that may stay with a large block, so it follows from shapes
    alone. With ``peak``, returns the maximum since ``torch.cuda.reset_peak_memory_stats()``.
    """
    return torch.cuda.memory_stats().get(f"requested_bytes.all.{'peak' if peak else 'current'}", 0)


def nvidia_smi(index: int | None = None) -> int | None:
    """Returns the bytes used on the current GPU by all its processes: contexts, segments, and libraries.

    ``index`` selects one of torch's GPUs without initialising CUDA. Returns None if NVML is absent or refuses, as on
    some virtual and integrated GPUs.
    """
    # NVML numbers the machine's GPUs, but torch numbers those of CUDA_VISIBLE_DEVICES (indices or UUIDs).
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if index is None:
        index = torch.cuda.current_device()
    named = visible[index].strip() if index < len(visible) else ""
    try:
        pynvml.nvmlInit()
        if named and not named.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByUUID(named)
        else:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(named or index))
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used  # pyright: ignore[reportReturnType]
    except pynvml.NVMLError:
        return None


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
