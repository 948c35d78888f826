"""Base class and helpers of the bindings."""

import torch

from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.device import machine as machines
from simgpu.device.machine import Machine


class Bindings:
    """Functions of torch._C for `machine`: each method that begins with one underscore is the function of that name."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def functions(self) -> dict:
        """Returns the methods, by name."""
        names = {name for kind in type(self).__mro__ for name in vars(kind)}
        return {name: getattr(self, name) for name in names if name.startswith("_") and not name.startswith("__")}


def only_device(index) -> None:
    """Raises AcceleratorError, as CUDA does, unless `index` is a GPU's, and NotModelledError for another rank's."""
    if index not in (-1, None):
        machines.check_number(index)


def is_others(machine: Machine, index) -> bool:
    """Returns whether `index` is another rank's GPU on this machine, on which this process allocates nothing."""
    return index not in (-1, None, machine.index) and 0 <= index < machine.count


def as_torch_error(error: OutOfMemory) -> torch.OutOfMemoryError:
    """Converts an allocator's error to PyTorch's."""
    return torch.OutOfMemoryError(str(error))
