"""Which device the course runs on: the GPU of this machine, or a simulated one."""

import contextlib
import os
from dataclasses import dataclass, replace

import torch

from labkit.units import whole_bytes


@dataclass(frozen=True)
class GPU:
    """The device that "cuda" means.

    `name`: "A100-80GB" for a simulated one, the driver's name for a real one. `total_memory`: bytes.
    """

    simulated: bool
    name: str
    total_memory: int

    def __str__(self):
        return f"simulated {self.name}" if self.simulated else self.name


_in_use: list[GPU] = []


def current() -> GPU:
    """The device in use: the innermost simulated GPU, else the machine's own.

    Raises RuntimeError if there is neither.
    """
    if _in_use:
        return _in_use[-1]
    if torch.cuda.is_available():
        return _real()
    raise RuntimeError('no GPU is in use: call labkit.use_gpu("A100-80GB") first')


def _real() -> GPU:
    return GPU(False, torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)


@contextlib.contextmanager
def simulated_gpu(name: str = "A100-80GB", total_memory: int | None = None):
    """Inside the `with`, "cuda" is a simulated GPU of that name, with an empty memory, whatever the machine has.

        with labkit.simulated_gpu("H100") as gpu:
            x = torch.ones(1, device="cuda")
            torch.cuda.memory_allocated()          # 512

    `total_memory`, in bytes, takes the place of the GPU's own: to see what a model would need that fits on none.

    On the way out, also by an exception, torch, torch.cuda and pynvml are as they were. Raises ValueError, naming the
    known ones, if `name` is not a GPU of `labkit.simulator.specs`, and if `total_memory` does not hold the CUDA
    context. What has no values cannot give any: `.item()` of a float is NaN with a warning, and what needs a value
    raises an error that says so.
    """
    from labkit.simulator.session import Session
    from labkit.simulator.specs import spec

    kind = spec(name)
    if total_memory is not None:
        total_memory = whole_bytes(total_memory)
        if total_memory <= kind.context:
            raise ValueError(
                f"total_memory={total_memory} B does not hold the CUDA context of a {kind.key}, {kind.context} B"
            )
        kind = replace(kind, total_memory=total_memory)
    session = Session(kind)
    gpu = GPU(True, session.machine.spec.key, session.machine.spec.total_memory)
    session.start()
    _in_use.append(gpu)
    try:
        yield gpu
    finally:
        _in_use.remove(gpu)
        session.stop()


_notebook: contextlib.ExitStack | None = None


def use_gpu(name: str = "A100-80GB") -> GPU:
    """For the first cell of a notebook: the machine's GPU if it has one, else a simulated one until the kernel ends.

    Prints which of the two it is. `LABKIT_GPU` in the environment overrides `name` and asks for the simulated GPU even
    where there is a real one. A second call, as when the cell is run again, starts with an empty simulated GPU.
    """
    global _notebook
    asked = os.environ.get("LABKIT_GPU")
    if _notebook is not None:
        _notebook.close()
        _notebook = None
    if asked is None and torch.cuda.is_available():
        gpu = _real()
        print(f"Running on {gpu.name}, {gpu.total_memory / 2**30:.2f} GiB.")
        return gpu
    with contextlib.ExitStack() as stack:
        gpu = stack.enter_context(simulated_gpu(asked or name))
        _notebook = stack.pop_all()
    print(f"Running on a simulated {gpu.name}, {gpu.total_memory / 2**30:.2f} GiB: exact memory, no values.")
    return gpu
