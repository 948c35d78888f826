"""Implements torch.cuda.get_device_properties() for the simulated GPU."""

import types
import uuid

from simgpu.errors import NotModelledError
from simgpu.gpus.specs import Spec

REGISTERS = 65536
THREADS_PER_BLOCK = 1024
SHARED_MEMORY_PER_BLOCK = 49152
"""These three are equal on every GPU from compute capability 7.0 on (CUDA programming guide, compute capabilities)."""

UNKNOWN = (
    "clock_rate",
    "memory_clock_rate",
    "memory_bus_width",
    "pci_bus_id",
    "pci_device_id",
    "pci_domain_id",
)
"""Fields of a GPU that a Spec does not know."""


class CudaDeviceProperties(types.SimpleNamespace):
    """The fields of _CudaDeviceProperties that a Spec knows; raises NotModelledError for the others."""

    def __repr__(self):
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )

    def __getattr__(self, name):
        if name in UNKNOWN:
            raise NotModelledError(f"get_device_properties().{name} is not known of the simulated {self.name}")
        raise AttributeError(f"'torch._C._CudaDeviceProperties' object has no attribute '{name}'")


def properties(spec: Spec) -> CudaDeviceProperties:
    """Returns the properties of a GPU of model `spec`."""
    major, minor = spec.compute_capability
    return CudaDeviceProperties(
        name=spec.name,
        major=major,
        minor=minor,
        total_memory=spec.total_memory,
        multi_processor_count=spec.multiprocessors,
        max_threads_per_multi_processor=spec.max_threads_per_multiprocessor,
        max_threads_per_block=THREADS_PER_BLOCK,
        regs_per_multiprocessor=REGISTERS,
        shared_memory_per_block=SHARED_MEMORY_PER_BLOCK,
        shared_memory_per_block_optin=spec.capability.shared_memory_per_block,
        shared_memory_per_multiprocessor=spec.capability.shared_memory,
        warp_size=32,
        L2_cache_size=spec.l2_cache,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=spec.name,
        uuid=uuid.uuid5(uuid.NAMESPACE_DNS, spec.key),
    )
