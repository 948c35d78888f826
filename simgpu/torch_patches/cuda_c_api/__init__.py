"""Implements the functions of torch._C that a CUDA build has: a class per subject, and a table of the simplest.

Most of torch.cuda is Python code that calls these. So memory_stats, memory_summary, memory_snapshot and similar
functions are PyTorch's own code, running on the simulated allocator. What is not modelled is refused by name
(`refused`).
"""

from simgpu.device.machine import Machine
from simgpu.torch_patches.cuda_c_api import answers
from simgpu.torch_patches.cuda_c_api.device import Device, Tensors
from simgpu.torch_patches.cuda_c_api.graphs import Graphs
from simgpu.torch_patches.cuda_c_api.memory import History, Memory, Pools

SUBJECTS = (Device, Memory, Pools, History, Graphs, Tensors)


def functions(machine: Machine) -> dict:
    """Returns every function of torch._C that is replaced while `machine` is on, by name."""
    found = answers.refusals() | answers.functions(machine)
    for subject in SUBJECTS:
        found |= subject(machine).functions()
    return found
