"""What the classes of bindings share."""

import torch

from simgpu import machine as machines
from simgpu.machine import Machine
from simgpu.memory.out_of_memory import OutOfMemory


class Bindings:
    """Functions of torch._C for `machine`: a method that begins with an underscore is the function of its name."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def functions(self) -> dict:
        """The methods, by name."""
        names = {name for kind in type(self).__mro__ for name in vars(kind)}
        return {name: getattr(self, name) for name in names if name.startswith("_") and not name.startswith("__")}


def only_device(index) -> None:
    """AcceleratorError, as from CUDA, unless `index` is a GPU's; NotModelledError for another rank's."""
    if index not in (-1, None):
        machines.check_number(index)


def is_others(machine: Machine, index) -> bool:
    """Whether `index` is the GPU of another rank on this machine, of which this process takes nothing."""
    return index not in (-1, None, machine.index) and 0 <= index < machine.count


def as_torch_error(error: OutOfMemory) -> torch.OutOfMemoryError:
    """The error of PyTorch's that an allocator's becomes."""
    return torch.OutOfMemoryError(str(error))
