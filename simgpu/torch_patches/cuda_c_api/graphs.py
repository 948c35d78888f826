"""Bindings for CUDA graphs: a capture allocates from a private pool; a replay is one launch and allocates nothing.

Source: aten/src/ATen/cuda/CUDAGraph.cpp and CUDAGeneratorImpl.cpp; compared with torch 2.13.0.
"""

import warnings
import weakref

from simgpu.allocator.event_log import DEFAULT_POOL
from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.allocator.private_pools import PoolId
from simgpu.clock.clock import Capture
from simgpu.device import machine as machines
from simgpu.errors import CaptureError, NotModelledError
from simgpu.torch_patches.cuda_c_api.base import Bindings, as_torch_error

STATE_BYTES = 8
"""Bytes of the seed, and of the offset, that a captured random generator reads: two blocks per graph."""


class Graphs(Bindings):
    """Functions that torch.cuda.graphs calls."""

    def _cuda_isCurrentStreamCapturing(self):
        capture = self.machine.clock.capture
        return capture is not None and self.machine.stream in capture.streams


class _Held:
    """Holds a graph's memory for the generator's state, and its pool; both are released once."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.stream = 0  # the stream of the capture
        self.pool_id: PoolId | None = None
        self.state = []

    def release(self) -> None:
        machine, pool_id = self.machine, self.pool_id
        if not machine.active:
            return
        for block in self.state:
            machine.allocator.free(block)
        self.state.clear()
        if pool_id is not None:
            machine.clear_blas_workspaces_of(self.stream)
            machine.allocator.pools.release(pool_id)
            self.pool_id = None


class Graph:
    """Base of torch.cuda.CUDAGraph, which is torch._C._CUDAGraph on CUDA builds."""

    def __new__(cls, keep_graph=False):
        return super().__new__(cls)

    def __init__(self, keep_graph=False):
        self._machine = machines.on()
        self._keep = keep_graph
        self._capture: Capture | None = None  # set when the capture begins
        self._ended = self._executable = False
        self._held = _Held(self._machine)
        self._pool_id: PoolId = DEFAULT_POOL
        weakref.finalize(self, self._held.release).atexit = False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        machine = self._machine
        if self._executable:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if machine.stream == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
            )
        if machine.clock.capture is not None:
            raise NotModelledError("two CUDA graphs that are captured at once are not modelled by the simulated GPU")
        if dict(machine.allocator.settings.ignored).get("graph_capture_record_stream_reuse"):
            raise NotModelledError("graph_capture_record_stream_reuse:True is not modelled by the simulated GPU")
        self._take_state()
        pools = machine.allocator.pools
        self._pool_id = pools.new_id(by_user=False) if pool is None else (pool[0], pool[1])
        self._capture = capture = Capture(machine.stream)
        self._held.stream = machine.stream
        pools.begin(self._pool_id, lambda stream: stream in capture.streams, capture=True)
        machine.clock.capture = capture
        machine.capture_failed = False

    def _take_state(self) -> None:
        """Allocates memory for the generator's seed and offset, on the default stream and outside private pools."""
        try:
            self._held.state += [self._machine.allocator.malloc(STATE_BYTES, 0) for _ in range(2)]
        except OutOfMemory as error:
            raise as_torch_error(error) from None

    def capture_end(self):
        self._end()
        self._executable = not self._keep

    def capture_end_pre(self):
        """Ends the capture without instantiating the graph, which torch 2.15 does in a step of its own."""
        self._end()

    def capture_end_post(self):
        """Does nothing: here torch 2.15 frees the captured graph, which a simulated GPU does not have."""

    @property
    def _has_graph_exec(self) -> bool:
        return self._executable

    def _end(self) -> None:
        machine = self._machine
        if self._capture is None or machine.clock.capture is not self._capture:
            raise RuntimeError("capture_end() called before capture_begin().")
        if machine.stream != self._held.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        machine.clock.capture = None
        if machine.capture_failed:
            raise CaptureError.of("operation failed due to a previous error during capture", "Invalidated")
        machine.allocator.pools.end(self._pool_id)
        self._held.pool_id = self._pool_id
        self._ended = True
        if self._capture.nodes == 0:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=3,
            )

    def instantiate(self):
        if not self._ended:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if self._executable and not self._keep:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")
        self._executable = True

    def replay(self):
        if not self._ended or self._capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._executable = True
        self._machine.clock.replay(self._machine.stream, self._capture)
        for compute in self._capture.computed:
            compute()

    def reset(self):
        self._held.release()
        self._capture = None
        self._ended = self._executable = False

    def pool(self):
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool_id

    def enable_debug_mode(self):
        raise NotModelledError("the nodes of a CUDA graph are not kept by the simulated GPU, and cannot be dumped")

    def debug_dump(self, path):
        self.enable_debug_mode()

    def raw_cuda_graph(self):
        self.enable_debug_mode()

    def raw_cuda_graph_exec(self):
        self.enable_debug_mode()
