"""One simulated GPU: its specification, its memory, its streams, and the state that CUDA libraries keep on it."""

import os
import threading
import time

from simgpu.errors import NotModelledError
from simgpu.hardware.gpus import Spec, cublas_workspace_bytes
from simgpu.left_out import LeftOut
from simgpu.memory.allocator import CachingAllocator
from simgpu.memory.physical import Device
from simgpu.memory.settings import AllocatorSettings
from simgpu.timing.clock import Clock

_current: list["Machine"] = []


def current() -> "Machine | None":
    """The simulated GPU that "cuda" means now: the innermost one, or None outside any."""
    return _current[-1] if _current else None


def on() -> "Machine":
    """The same. RuntimeError outside any simulated GPU."""
    if not _current:
        raise RuntimeError("the simulated GPU that this stream or event belongs to is off: use it inside the `with`")
    return _current[-1]


class Machine:
    """A GPU of kind `spec` with an empty memory, for PyTorch version `torch_version`.

    The allocator's settings are read from PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF, as CUDA does when it
    is initialised (ValueError if they cannot be parsed). NotModelledError if PYTORCH_NO_CUDA_MEMORY_CACHING is set.
    """

    def __init__(self, spec: Spec, torch_version: tuple[int, int], frames=None):
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
            raise NotModelledError(
                "PYTORCH_NO_CUDA_MEMORY_CACHING switches PyTorch's caching allocator off, and the simulated GPU models "
                "nothing else; unset it"
            )
        self.spec = spec
        self.torch_version = torch_version
        self.device = Device(total_memory=spec.total_memory, context=spec.context)
        self.allocator = CachingAllocator(
            self.device,
            settings=AllocatorSettings.from_environment(os.environ),
            torch_version=torch_version,
            clock=lambda: time.time_ns() // 1000,
            frames=frames,
            record_event=lambda stream: lambda: True,  # to the allocator, what was submitted is done
        )
        self.clock = Clock(spec)
        self.left_out = LeftOut(spec.key)
        self.stream = 0  # handle of the current stream; 0 is the default stream
        self.host_bytes = 0  # of tensors copied to the host, which are counted and take no memory there
        self.active = False
        self._touched = False
        self._workspaces = {}
        self._raw = {}

    def activate(self):
        """Makes this the GPU that "cuda" means, until `deactivate`."""
        self.active = True
        _current.append(self)

    def deactivate(self):
        """Gives "cuda" back to whatever it meant before."""
        self.active = False
        _current.remove(self)

    def touch(self) -> None:
        """Creates the CUDA context, as the first call that needs the device does."""
        self._touched = True

    @property
    def used_memory(self) -> int:
        """Bytes of the device in use, as nvidia-smi shows them: the context, once there is one, and all segments."""
        free, total = self.device.mem_get_info()
        has_context = self._touched or self.allocator.stats()["num_device_alloc"] > 0
        return total - free - (0 if has_context else self.spec.context)

    def take_blas_workspace(self, in_backward: bool) -> None:
        """Allocates cuBLAS's workspace if this thread's handle has none yet on the current stream.

        Handles belong to a thread, and autograd runs CUDA's backward in a thread of its own, so forward and
        backward each take one and keep it (aten/src/ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace and
        getCurrentCUDABlasHandle: one workspace per (handle, stream)).
        """
        thread = "autograd" if in_backward else threading.get_ident()
        key = (thread, self.stream)
        if key not in self._workspaces:
            size = cublas_workspace_bytes(
                self.spec.compute_capability, torch_version=self.torch_version, environ=os.environ
            )
            self._workspaces[key] = self.allocator.malloc(size, self.stream)

    def clear_blas_workspaces(self) -> None:
        """What torch._C._cuda_clearCublasWorkspaces() does: gives all workspaces back to the cache."""
        for block in self._workspaces.values():
            if block is not None:
                self.allocator.free(block)
        self._workspaces.clear()

    def raw_alloc(self, nbytes: int, stream: int) -> int:
        """torch._C._cuda_cudaCachingAllocator_raw_alloc: the address of a block that no tensor has."""
        block = self.allocator.malloc(nbytes, stream)
        if block is None:
            return 0
        self._raw[block.address] = block
        return block.address

    def raw_delete(self, address: int) -> None:
        """torch._C._cuda_cudaCachingAllocator_raw_delete. RuntimeError if `raw_alloc` has not given this address."""
        if address == 0:
            return
        if address not in self._raw:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        self.allocator.free(self._raw.pop(address))
