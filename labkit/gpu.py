"""Which device the course runs on: the GPU of this machine, or a simulated one."""

import os
import re
import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from labkit import guesses
from labkit.living import living
from labkit.units import whole_bytes

_LISTED = 4  # tensors that are named


@dataclass(frozen=True)
class GPU:
    """The device that "cuda" means.

    `name`: "A100-80GB" for a simulated one, the driver's name for a real one. `total_memory`: bytes. `host`: the factor
    on the times of a simulated one's host.
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
    """The device in use: the innermost simulated GPU, else the machine's own.

    Raises RuntimeError if there is neither.
    """
    machine = simulated_machine()
    if machine is not None:
        return GPU(True, machine.spec.key, machine.spec.total_memory, machine.clock.slowness)
    if torch.cuda.is_available():
        return _real()
    raise RuntimeError('no GPU is in use: call labkit.use_gpu("A100-80GB") first')


def simulated_machine() -> Any:
    """The `simgpu.machine.Machine` behind "cuda" now; None where "cuda" is no simulated GPU."""
    machines = sys.modules.get("simgpu.machine")  # nothing of the simulator is imported where it is not in use
    return machines.current() if machines else None


def simulator_is_on() -> bool:
    """Whether "cuda" is a simulated GPU now."""
    return simulated_machine() is not None


def _real() -> GPU:
    return GPU(False, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)


def another(real: str, name: str) -> bool:
    """Whether a real GPU, by the driver's name, is another one than `name`: each part of that is in the driver's."""
    return not all(part.lower() in real.lower() for part in re.split(r"[-\s]", name))


def left_out() -> str:
    """What the figures of the simulated GPU in use leave out, in one line; "" if nothing, and on a real GPU."""
    machines = sys.modules.get("simgpu.machine")
    machine = machines.current() if machines else None
    return "" if machine is None else str(machine.left_out)


def label() -> str:
    """The device in use as tables and figures name it: "simulated A100-80GB", and what its figures leave out."""
    return " · ".join(filter(None, (str(current()), left_out())))


def this_host() -> float:
    """How many times as long this machine takes to issue an operator as the host that the simulated clock assumes.

        labkit.use_gpu("H100", host=labkit.this_host())

    2 is half as fast. A loop of small layers on the CPU is timed, for about a second (simgpu/this_host.py); a machine
    that does something else meanwhile seems slower than it is.
    """
    import simgpu

    return simgpu.host_slowness()


def simulated_gpu(name: str = "A100-80GB", total_memory: int | None = None, *, values: bool = False, host: float = 1.0):
    """`simgpu.simulated_gpu`: inside the `with`, "cuda" is a simulated GPU of that name, with an empty memory.

        with labkit.simulated_gpu("H100") as gpu:
            x = torch.ones(1, device="cuda")
            torch.cuda.memory_allocated()          # 512

    `total_memory`, in bytes, takes the place of the GPU's own. `values`: all tensors have their values, computed on the
    CPU beside the simulation, so that losses fall and results can be looked at. `host`: the factor on the times of the
    host, as of `this_host()`; where it is not 1, every time that labkit prints says so. Raises what
    `simgpu.simulated_gpu` raises.
    """
    import simgpu

    nbytes = None if total_memory is None else whole_bytes(total_memory)
    return simgpu.simulated_gpu(name, nbytes, values=values, host=host)


_notebook: Any = None  # the simulated GPU that `use_gpu` has entered, or was entering or leaving when interrupted


def leave() -> None:
    """Ends the simulated GPU that `use_gpu` has entered, if there is one.

    Raises RuntimeError in another thread than its own; it is on then as before.
    """
    global _notebook
    if _notebook is not None and _notebook.is_on:
        _notebook.__exit__(None, None, None)
    _notebook = None


UNIFIED = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"  # aten/src/ATen/cuda/CublasHandlePool.cpp: 1, from torch 2.12 on, or 0


def _share_workspace() -> None:
    """Up to torch 2.11 a Linear with a bias takes 1 MiB more than the course says, unless the environment says so."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12) and UNIFIED not in os.environ:
        os.environ[UNIFIED] = "1"
        print(f"{UNIFIED}=1: torch {torch.__version__} allocates for a Linear with a bias what later versions do.")


def use_gpu(name: str = "A100-80GB", *, values: bool = False, only_simulated: bool = False, host: float = 1.0) -> GPU:
    """For the first cell of a notebook: the machine's GPU if it has one, else a simulated one until the kernel ends.

    Prints which of the two it is, and of a real GPU that is another than `name` what will differ. `values`: whether
    tensors on a simulated one have values, computed on the CPU; those of a real one have. `LABKIT_GPU` in the
    environment overrides `name` and asks for the simulated GPU even where there is a real one. A second call, as when
    the cell is run again, starts with an empty simulated GPU, and names the tensors of the one before that are alive.
    Inside a `with simulated_gpu(...)` that one is used.
    `only_simulated`: the simulated GPU of that name on every machine, for a notebook that is about that GPU. `host`:
    the factor on the times of a simulated one's host, as of `this_host()`; a real one's is as fast as it is.

    The notebook begins again too: guesses are forgotten, and tables print three decimals. On torch 2.11, cuBLASLt is
    told to share cuBLAS's workspace, as it does by itself from torch 2.12 on, and that is printed.
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
    torch.cuda.init()  # as asking a real GPU for its name does
    have = "the CPU's values" if values else "no values"
    speed = f", a host that takes {host:.3g} times as long as the clock assumes" if host != 1 else ""
    print(f"Running on a simulated {gpu.name}, {gpu.total_memory / 2**30:.2f} GiB: exact memory, {have}{speed}.")
    return current()
