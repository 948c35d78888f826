"""The functions of torch._C that a CUDA build has, on the simulated GPU: one class a subject, one method a function.

Most of torch.cuda is Python over these, so memory_stats, memory_summary, memory_snapshot and their kin are PyTorch's
own code on the simulated allocator. What is not modelled is refused by its name (`refused`).
"""

from simgpu.machine import Machine
from simgpu.torch_face.bindings import refused
from simgpu.torch_face.bindings.device import Device
from simgpu.torch_face.bindings.graphs import Graphs
from simgpu.torch_face.bindings.history import History
from simgpu.torch_face.bindings.libraries import Libraries
from simgpu.torch_face.bindings.memory import Memory
from simgpu.torch_face.bindings.pools import Pools
from simgpu.torch_face.bindings.streams import Streams
from simgpu.torch_face.bindings.tensors import Tensors

SUBJECTS = (Device, Memory, Pools, History, Streams, Graphs, Libraries, Tensors)


def functions(machine: Machine) -> dict:
    """Every function of torch._C that is another one while `machine` is on, by name."""
    found = refused.functions()
    for subject in SUBJECTS:
        found |= subject(machine).functions()
    return found
