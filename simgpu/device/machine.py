"""Models one GPU: its specification, its memory, its streams, and the state that CUDA libraries keep on it."""

import contextlib
import os
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import torch

from simgpu.allocator.physical import Device
from simgpu.allocator.settings import AllocatorSettings
from simgpu.clock.clock import Clock
from simgpu.device.allocator_lock import AllocatorLock, LockedAllocator
from simgpu.errors import LOST, REMEDY, CaptureError, NotModelledError
from simgpu.gpus.cublas_workspace import cublas_workspace_bytes, keeps_blas_workspace, lt_workspace_bytes
from simgpu.gpus.specs import Spec
from simgpu.interrupts import defers_signals
from simgpu.placeholder_values import PlaceholderValues
from simgpu.unmodeled import Unmodeled

VISIBLE = "CUDA_VISIBLE_DEVICES"
STREAMS_PER_POOL = 32
LOWEST_LEVEL = 3  # priorities range from 0 down to -3

_current: list["Machine"] = []


def current() -> "Machine | None":
    """Returns the innermost simulated GPU in use, which "cuda" means now, or None."""
    return _current[-1] if _current else None


@cache
def _numbered(index: int) -> torch.device:
    return torch.device("cuda", index)


def cuda() -> torch.device:
    """Returns the device of the simulated GPU in use, or cuda:0 if there is none."""
    return _current[-1].cuda if _current else _numbered(0)


def check_number(index: int) -> None:
    """Raises AcceleratorError, like CUDA, if `index` is not a GPU that this process sees.

    Raises NotModelledError if it is the GPU of a different rank, or a second one of this process.
    """
    machine = current()
    if index == (0 if machine is None else machine.index):
        return
    if machine is not None and machine.movable and index >= 0 and not machine.has_context:
        return machine.move(index)
    if machine is None or not 0 <= index < machine.count:
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    if machine.world is None:
        raise NotModelledError(
            f"this process has used {machine.cuda} and now names cuda:{index}: a process has one simulated GPU"
        )
    raise NotModelledError(
        f"cuda:{index} is the GPU of another rank: this process is rank {machine.world.rank} of {machine.world.ranks}, "
        f"on {machine.cuda}, and the other GPUs are not simulated. On a real GPU this process would use memory of "
        'that rank. Use "cuda", or torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
    )


def on() -> "Machine":
    """Returns the simulated GPU in use. Raises RuntimeError if there is none."""
    if not _current:
        raise RuntimeError("the simulated GPU that this stream or event belongs to is off: use it inside the `with`")
    return _current[-1]


def remedy() -> str:
    """Returns the advice for an error about a missing value: values=True, or why values are missing although it is
    on.
    """
    machine = current()
    return REMEDY if machine is None or machine.host_memory is None else LOST


def _after_fork() -> None:
    """Marks each GPU as forked in a child process if CUDA was initialised, because a fork does not inherit its
    context.
    """
    for machine in _current:
        machine.allocator_lock.forked = machine.initialized


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Machine:
    """A GPU of model `spec` with empty memory, for PyTorch version `torch_version`.

    Environment variables are read when PyTorch reads them. The allocator's settings are read when CUDA is initialised,
    or earlier by a function that needs them (`allocator_settings`). cuBLAS's settings are read at the first matmul, and
    the visible GPUs when PyTorch first looks for one. `host_memory` stores the values of all tensors
    (storage/host_memory.py), or is None if they are not requested. `host` is the factor by which this host is slower
    than the clock's own (clock/clock.py).
    """

    def __init__(self, spec: Spec, torch_version: tuple[int, int], frames=None, host_memory=None, host: float = 1.0):
        self.spec = spec
        self.torch_version = torch_version
        self.device = Device(total_memory=spec.total_memory, context=spec.context)
        self.unmodeled = Unmodeled(spec.key)
        self.allocator_lock = AllocatorLock(self.unmodeled)
        self.allocator = LockedAllocator(
            self.device,
            self.allocator_lock,
            settings=self._allocator_settings,
            torch_version=torch_version,
            clock=lambda: time.time_ns() // 1000,
            frames=frames,
            record_event=lambda stream: lambda: True,  # for the allocator, submitted work is done
        )
        self.clock = Clock(spec, host)
        self.host_memory = host_memory
        self.generator: Any = None  # torch.cuda.default_generators[0]
        self.named_generator: Any = None  # the generator that the current call names
        self.stream = 0  # handle of the current stream; 0 is the default stream
        self.operator = None  # the operator that allocates, or the last that did; None for a copy between host and GPU
        self.before_memory: Callable | None = None  # called with an operator's arguments before it allocates
        self.math_attention: Counter = Counter()  # calls of the math backend, by the reason why the fused ones refused
        self.placeholder_values: PlaceholderValues | None = None  # provides placeholder values, for `simgpu run`
        self.casts: dict = {}  # autocast's copies of weights, until its outermost region ends (ops/autocast.py)
        self.host_bytes = 0  # bytes of tensors copied to the host, which are counted but not allocated there
        self.world: Any = None  # the world that the process is one rank of (distributed/world.py), or None
        self.traffic: Any = None  # the record of its collectives (distributed/kinds.py)
        self.links: Any = None  # links between the ranks of that world (distributed/links.py)
        self.seeing: Callable = contextlib.nullcontext  # a context in which Python sees the GPU while an operator runs
        self.join: Any = None  # makes a monitored process a rank of a world: join(rank, ranks), from running/child.py
        self.on_first_use: Any = None  # called without arguments, before the allocator is first used
        self.has_others = False  # whether other processes of the program run that it may wait for
        self.movable = False  # whether the process chooses its GPU by index, as a started process does
        self._number: int | None = None  # the index that it has chosen
        self.gpus = 1  # number of GPUs visible to a program that starts a process per GPU
        self.active = False
        self.alone = ""  # why no other simulated GPU can be entered while this one is on
        self.stream_counts = {}  # number of streams created, by priority
        self.sync_debug_mode = 0  # torch.cuda.set_sync_debug_mode: 1 warns, 2 raises
        self.library_settings = {}  # settings of cuDNN, cuFFT and TunableOp, by name; they do not affect memory
        self.capture_failed = False  # whether the captured CUDA graph is invalid
        self._initialized = self._stays = False
        self._touched = False
        self._workspaces = {}
        self._raw = {}
        self._visible_before = os.environ.get(VISIBLE)

    @cached_property
    def blas_environment(self) -> dict[str, str]:
        """Returns the environment variables as of the first matmul, when PyTorch reads cuBLAS's."""
        return dict(os.environ)

    @cached_property
    def lt_apart(self) -> bool:
        """Returns whether cuBLASLt has a workspace separate from cuBLAS's."""
        return lt_workspace_bytes(self.spec.compute_capability, self.torch_version, self.blas_environment) is not None

    def activate(self):
        """Makes "cuda" mean this GPU, until `deactivate`."""
        self.active = True
        _current.append(self)

    def deactivate(self):
        """Restores what "cuda" meant before."""
        self.active = False
        self.casts.clear()
        if self in _current:
            _current.remove(self)

    @property
    def index(self) -> int:
        """Returns this GPU's index among those that its process sees: 0, or the local rank in a world."""
        if self._number is not None:
            return self._number
        return 0 if self.world is None else self.world.local_rank

    def move(self, index: int) -> None:
        """Makes this GPU number `index` of its process, which has not used any other."""
        self._number = index
        self.allocator.is_gpu(self.index, self.count)

    @property
    def count(self) -> int:
        """Returns the number of GPUs that its process sees; only this one has memory."""
        local = 1 if self.world is None else self.world.local_ranks
        return 0 if self.hidden else max(local, self.gpus, self.index + 1)

    @cached_property
    def hidden(self) -> bool:
        """Returns whether the program has hidden all GPUs with CUDA_VISIBLE_DEVICES by the time PyTorch first looks for
        one.

        A value set before the simulated GPU was entered concerns the machine's own GPUs and is ignored.
        """
        visible = os.environ.get(VISIBLE)
        return visible is not None and visible != self._visible_before and not re.match(r"\s*(\d|GPU-|MIG-)", visible)

    def _allocator_settings(self) -> AllocatorSettings:
        """Returns the allocator's settings from PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.

        Raises ValueError if they cannot be parsed, NotModelledError if PYTORCH_NO_CUDA_MEMORY_CACHING is set, and
        RuntimeError if no GPU is visible.
        """
        if self.hidden:
            raise RuntimeError("No CUDA GPUs are available")
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
            raise NotModelledError(
                "PYTORCH_NO_CUDA_MEMORY_CACHING switches PyTorch's caching allocator off, and the simulated GPU models "
                "nothing else; unset it"
            )
        if self.on_first_use is not None:
            self.on_first_use()
        return AllocatorSettings.from_environment(os.environ)

    @property
    def cuda(self) -> torch.device:
        """Returns the device that its tensors report."""
        return _numbered(self.index)

    def touch(self) -> None:
        """Creates the CUDA context, as the first call that needs the device does."""
        self.allocator.read_settings()
        self._touched = True

    @property
    def has_context(self) -> bool:
        """Returns whether this process has a CUDA context, which the first call that needs the device creates."""
        return self._touched or self.allocator.used

    @property
    def initialized(self) -> bool:
        """Returns whether PyTorch has initialised CUDA, as torch.cuda.is_initialized() does."""
        return self._initialized or self.has_context

    def initialize(self) -> None:
        """Initialises CUDA as torch.cuda.init() does, which most functions of torch.cuda call first."""
        if not self._stays:
            self.allocator.read_settings()
            self._initialized = True

    @contextlib.contextmanager
    def as_it_is(self):
        """Disables `initialize` inside the `with`."""
        self._stays, before = True, self._stays
        try:
            yield
        finally:
            self._stays = before

    @property
    def used_memory(self) -> int:
        """Returns the device's used bytes as nvidia-smi shows them: the context, once it exists, and all segments."""
        free, total = self.device.mem_get_info()
        return total - free - (0 if self.has_context else self.spec.context)

    def synchronize(self) -> None:
        """Makes the host wait for all work, as torch.cuda.synchronize() does."""
        self.forbid_in_capture()
        self._initialized = True
        self.touch()
        self.allocator.synchronize()
        self.clock.synchronize()

    def waits(self) -> None:
        """Reports an operation that makes the host wait implicitly; call it for each.

        torch.cuda.set_sync_debug_mode requires a warning or an error there (c10/cuda/CUDAFunctions.cpp,
        warn_or_error_on_sync).
        """
        self.forbid_in_capture(self.stream)
        if self.sync_debug_mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.sync_debug_mode == 1:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    def forbid_in_capture(self, stream: int | None = None) -> None:
        """Raises CaptureError while a CUDA graph is captured on `stream` (any stream if None), and marks the capture as
        failed.

        Call it in every operation that a CUDA graph cannot contain.
        """
        capture = self.clock.capture
        if capture is not None and (stream is None or stream in capture.streams):
            self.capture_failed = True
            raise CaptureError.of("operation not permitted when stream is capturing", "Unsupported")

    def host_copy(self, pinned: bool, non_blocking: bool) -> None:
        """Checks a copy between host and GPU; call it for each (Copy.cu, copy_kernel_cuda)."""
        capture = self.clock.capture
        if capture is not None and self.stream in capture.streams and not pinned:
            raise RuntimeError(
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
                "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
            )
        if not non_blocking:
            self.waits()

    @defers_signals
    def clear_blas_workspaces_of(self, stream: int) -> None:
        """Frees the workspaces that were allocated on a stream, which returns them to the cache."""
        for key in [key for key in self._workspaces if key[1] == stream]:
            block = self._workspaces.pop(key)
            if block is not None:
                self.allocator.free(block)

    def new_stream_id(self, priority: int) -> int:
        """Returns the id of the next stream of PyTorch's pool, which has 32 per priority (c10/cuda/CUDAStream.cpp).

        The ids are 3, 35, 67, … for priority 0 and above, 5, 37, … for -1, and so on down to 9, 41, … for -3 and below.
        """
        level = min(max(-priority, 0), LOWEST_LEVEL)
        count = self.stream_counts.get(level, 0)
        self.stream_counts[level] = count + 1
        return (count % STREAMS_PER_POOL) << 5 | (level + 1) << 1 | 1

    def take_blas_workspace(self, in_backward: bool, lt: bool = False) -> None:
        """Allocates cuBLAS's workspace if this thread's handle has none yet on the current stream; `lt` is for
        cuBLASLt.

        From torch 2.15 on, a matmul frees its workspace at once (`keeps_blas_workspace`), and one by cuBLASLt allocates
        only cuBLASLt's. Before that, handles keep their workspaces. Handles belong to a thread, and autograd runs
        CUDA's backward in a separate thread, so forward and backward each allocate one
        (aten/src/ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace and getCurrentCUDABlasHandle: one workspace per
        (handle, stream)). Up to torch 2.11, cuBLASLt has its own workspace and allocates both. Later it has its own
        only if the environment says so, and then allocates only that one.
        """
        capability, version, environ = self.spec.compute_capability, self.torch_version, self.blas_environment
        apart = lt and self.lt_apart
        if not keeps_blas_workspace(version, environ):
            sizes = lt_workspace_bytes if apart else cublas_workspace_bytes
            block = self.allocator.malloc(sizes(capability, version, environ) or 0, self.stream)
            if block is not None:
                self.allocator.free(block)
            return
        key = ("autograd" if in_backward else threading.get_ident(), self.stream)
        if key in self._workspaces and not apart:
            return
        of_lt = lt_workspace_bytes(capability, version, environ) if apart else None
        if key not in self._workspaces and (of_lt is None or version < (2, 12)):
            size = cublas_workspace_bytes(capability, version, environ)
            self._workspaces[key] = self.allocator.malloc(size, self.stream)
        of_both = (*key, "cublasLt")
        if of_lt is not None and of_both not in self._workspaces:
            self._workspaces[of_both] = self.allocator.malloc(of_lt, self.stream)

    @defers_signals
    def clear_blas_workspaces(self) -> None:
        """Frees all workspaces, as torch._C._cuda_clearCublasWorkspaces() does."""
        for block in self._workspaces.values():
            if block is not None:
                self.allocator.free(block)
        self._workspaces.clear()

    @defers_signals
    def raw_alloc(self, nbytes: int, stream: int) -> int:
        """Allocates a block without a tensor and returns its address, as torch._C._cuda_cudaCachingAllocator_raw_alloc
        does.
        """
        block = self.allocator.malloc(nbytes, stream)
        if block is None:
            return 0
        self._raw[block.address] = block
        return block.address

    @defers_signals
    def raw_delete(self, address: int) -> None:
        """Frees such a block, as torch._C._cuda_cudaCachingAllocator_raw_delete does.

        Raises RuntimeError if `raw_alloc` has not returned this address.
        """
        if address == 0:
            return
        if address not in self._raw:
            raise RuntimeError(f"invalid device pointer: {address:#x}")
        self.allocator.free(self._raw.pop(address))
