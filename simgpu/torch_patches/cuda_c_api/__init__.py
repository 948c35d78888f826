"""Implements the functions of torch._C that a CUDA build has: a class per subject, and a table of the simplest.

Most of torch.cuda is Python code that calls these. So memory_stats, memory_summary, memory_snapshot and similar
functions are PyTorch's own code, running on the simulated allocator. What is not modelled is refused by name
(`refused`).
"""

from simgpu.device.machine import Machine
from simgpu.torch_patches.cuda_c_api import answers, refused
from simgpu.torch_patches.cuda_c_api.device import Device
from simgpu.torch_patches.cuda_c_api.graphs import Graphs
from simgpu.torch_patches.cuda_c_api.history import History
from simgpu.torch_patches.cuda_c_api.memory import Memory
from simgpu.torch_patches.cuda_c_api.pools import Pools
from simgpu.torch_patches.cuda_c_api.tensors import Tensors

SUBJECTS = (Device, Memory, Pools, History, Graphs, Tensors)


def functions(machine: Machine) -> dict:
    """Returns every function of torch._C that is replaced while `machine` is on, by name."""
    found = refused.functions() | answers.functions(machine)
    for subject in SUBJECTS:
        found |= subject(machine).functions()
    return found
