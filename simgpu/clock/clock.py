"""The simulated GPU's clock: when the host issues work, and when the device finishes it.

The host issues work and continues, and each stream runs its work in order. Kernels of all streams share one engine,
because a kernel is costed as if it had the whole GPU. Copies to and from the host have one engine each, and so has each
link to other GPUs in each direction. These run concurrently with kernels of another stream.

Times are in seconds since the GPU was switched on. They are computed only from what is issued, so two runs of a script
give the same times. The wall clock of this machine is not used, and `time.perf_counter()` says nothing about the
simulated GPU.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from simgpu.clock import rates
from simgpu.clock.communication import Transfer
from simgpu.clock.tracks import COMMUNICATION, COMPUTE, COPY_TO_GPU, COPY_TO_HOST, HOST, ISSUES, Lanes
from simgpu.gpus.specs import Spec

KERNELS, TO_GPU, TO_HOST = "kernels", "to GPU", "to host"
_COPYING = {TO_GPU: COPY_TO_GPU, TO_HOST: COPY_TO_HOST}


class Engine:
    """Models a part of the GPU that runs one thing at a time; work that is ready may run before work that still
    waits.
    """

    __slots__ = ("_gaps", "free")

    def __init__(self) -> None:
        self.free = 0.0  # nothing is scheduled after this time
        self._gaps: deque[tuple[float, float]] = deque()  # idle intervals before `free` that later work may still use

    def take(self, ready: float, seconds: float, now: float) -> float:
        """Schedules work of `seconds` that becomes ready at `ready`, and returns when it begins.

        Nothing can become ready before `now`, the host's time.
        """
        gaps = self._gaps
        while gaps and gaps[0][1] <= now:
            gaps.popleft()
        if ready >= self.free:
            if ready > now:
                gaps.append((self.free, ready))
            self.free = ready + seconds
            return ready
        for position, (start, end) in enumerate(gaps):
            begin = max(start, ready)
            if begin + seconds <= end:
                del gaps[position]
                for gap in ((begin + seconds, end), (start, begin)):
                    if gap[0] < gap[1]:
                        gaps.insert(position, gap)
                return begin
        begin = self.free
        self.free += seconds
        return begin


class Capture:
    """Holds the kernels and copies of a CUDA graph during and after its capture, counted as if they ran in sequence.

    `streams`: the streams that belong to it. `seconds`: device time. `nodes`: number of kernels and copies. Work that
    streams run concurrently in a graph is counted in sequence. `computed`: functions that recompute its values, if the
    tensors have values.
    """

    def __init__(self, stream: int) -> None:
        self.streams = {stream}
        self.seconds = 0.0
        self.nodes = 0
        self.computed: list = []

    def add(self, seconds: float, nodes: int = 1) -> None:
        """Adds the time and number of kernels or copies."""
        self.seconds += seconds
        self.nodes += nodes


def checked_slowness(factor: float) -> float:
    """Returns a factor on host times. Raises ValueError if it is not a positive number."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise ValueError(f"host={factor!r}: wanted a number above 0, such as 2 for a host half as fast")
    return float(factor)


class Reading(NamedTuple):
    """Holds a time of the clock, and what it consists of, in seconds.

    `seconds`: until host and device are done. `busy`: of kernels and transfers. `issuing`: of the host, for operators
    and their launches. `backward`: of kernels that autograd's engine launched.
    """

    seconds: float = 0.0
    busy: float = 0.0
    issuing: float = 0.0
    backward: float = 0.0

    def since(self, before: "Reading") -> "Reading":
        """Returns the differences from an earlier reading."""
        return Reading(*(now - then for now, then in zip(self, before, strict=True)))


class Clock:
    """Holds the host and device timelines of a GPU described by `spec`.

    `slowness`: how much slower than the host of `rates` this one is at a launch, an operator, a view, or another call
    of PyTorch or CUDA. A value that is not a positive number raises ValueError. `host`: the host's time in seconds.
    `streams`: when each stream finishes its work, by its id, or by a name for a stream of NCCL. `lanes`: the record of
    all issued work, or None. `region`: an object whose `flush` puts the kernels of a compiled region on the clock
    before a time is read, or None. `busy`, `issuing`, `backward`: see `Reading`. `graph_task`: returns the number of
    the backward pass that runs, -1 if none does.
    """

    def __init__(self, spec: Spec, slowness: float = 1.0) -> None:
        self.spec = spec
        self.slowness = checked_slowness(slowness)
        self._launch, self._view = rates.LAUNCH * self.slowness, rates.VIEW * self.slowness
        self.host = self.busy = self.issuing = self.backward = 0.0
        self.streams: dict[Hashable, float] = {}
        self.lanes: Lanes | None = None
        self.region: Any = None
        self.graph_task: Callable[[], int] = torch._C._current_graph_task_id
        self._engines: dict[Hashable, Engine] = {name: Engine() for name in (KERNELS, TO_GPU, TO_HOST)}
        self._kernels = self._engines[KERNELS]
        self._queue: deque[float] = deque(maxlen=rates.QUEUE)
        self.capture: Capture | None = None  # the CUDA graph that is being captured

    # Issuing work

    def pass_time(self, seconds: float, name: str = "host work") -> None:
        """Advances the host by `seconds` of other work, called `name`. Raises ValueError for negative or infinite
        seconds.
        """
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"the host cannot work for {seconds} s")
        self.settle()
        self._host_until(self.host + seconds, name)

    def view(self) -> None:
        """Adds the host time of an operator that only creates a view."""
        if self.region is None:
            self.host += self._view

    def launch(
        self, stream: int, work: float, kernels: int = 1, overhead: float = rates.OPERATOR, name: str = ""
    ) -> None:
        """Issues an operator of `kernels` kernels, which need `work` seconds of the GPU in addition to their fixed
        cost.

        `overhead`: host seconds in addition to the launches, for the host of `rates`. `name`: its name in the lanes.
        """
        launch, begun = self._launch, self.host
        if self.capture is not None and stream in self.capture.streams:
            self.host += overhead * self.slowness + kernels * launch
            self.capture.add(work + kernels * rates.KERNEL, kernels)
            if self.lanes is not None:
                self.lanes.note(HOST, ISSUES, begun, self.host)
            return
        issued = begun + overhead * self.slowness + launch
        self.issuing += issued - begun + (kernels - 1) * launch
        queue = self._queue
        if len(queue) == rates.QUEUE:
            issued = max(issued, queue[0])
        self.host = issued
        begin = self._kernels.take(max(issued, self.streams.get(stream, 0.0)), work, issued)
        whole = work + kernels * rates.KERNEL
        end = begin + whole
        self.busy += whole
        if self.graph_task() != -1:
            self.backward += whole
        if kernels > 1:
            self.host += (kernels - 1) * launch
            end = max(end, self.host + rates.KERNEL)
        self.streams[stream] = end
        queue.append(end)
        if self.lanes is not None:
            self.lanes.note(HOST, ISSUES, begun, self.host)
            self.lanes.note(COMPUTE, name, begin, end)

    def copy(self, stream: int, nbytes: int, direction: str, *, pinned: bool, blocking: bool) -> None:
        """Issues a copy of `nbytes` over the host link in the direction TO_GPU or TO_HOST.

        The host waits for it if it is `blocking`, or if the host memory is not `pinned`. In the second case the driver
        copies piece by piece through its own buffer.
        """
        self.settle()
        self._host_until(self.host + (rates.OPERATOR + rates.LAUNCH) * self.slowness, ISSUES)
        seconds = nbytes / (self.spec.host_link * (rates.PINNED if pinned else rates.PAGEABLE))
        if self.capture is not None and stream in self.capture.streams:
            self.capture.add(seconds + rates.KERNEL)
            return
        begin = self._engines[direction].take(max(self.host, self.streams.get(stream, 0.0)), seconds, self.host)
        self.streams[stream] = begin + seconds + rates.KERNEL
        self.busy += seconds
        if self.lanes is not None:
            self.lanes.note(_COPYING[direction], "pinned" if pinned else "pageable", begin, self.streams[stream])
        if blocking or not pinned:
            self.synchronize(stream)

    def communicate(self, stream: int, own: Hashable, transfer: Transfer) -> float:
        """Issues a collective, a send or a receive on the stream `own`, after the work of `stream`; returns when it
        ends.

        It does not wait for other ranks.
        """
        ready = self.asked(stream, own)
        if self.capture is not None and stream in self.capture.streams:
            self.capture.add(transfer.seconds)
            return self.host
        engine = self._engines.setdefault(transfer.link, Engine())
        return self.carried(own, transfer, engine.take(ready, transfer.seconds, self.host))

    def asked(self, stream: int, own: Hashable) -> float:
        """Adds the host time of issuing a transfer, and returns the earliest time at which the streams allow it to
        begin.
        """
        self.settle()
        self._host_until(self.host + (rates.OPERATOR + rates.LAUNCH) * self.slowness, ISSUES)
        return max(self.host, self.streams.get(stream, 0.0), self.streams.get(own, 0.0))

    def carried(self, own: Hashable, transfer: Transfer, begin: float) -> float:
        """Runs a transfer from the time `begin` on the stream `own`, and returns when it ends."""
        self.busy += transfer.seconds
        end = self.streams[own] = begin + transfer.seconds
        if self.lanes is not None:
            self.lanes.note(COMMUNICATION, transfer.name, begin, end)
        return end

    def pinning(self, nbytes: int) -> float:
        """Returns the seconds that a host thread needs to copy `nbytes` into pinned memory (`rates.PAGEABLE`)."""
        return nbytes / (self.spec.host_link * rates.PAGEABLE)

    def replay(self, stream: int, graph: Capture) -> None:
        """Launches a captured CUDA graph with a single call."""
        self.settle()
        self.launch(stream, max(0.0, graph.seconds - rates.KERNEL), overhead=rates.CALL, name="CUDA graph")

    def settle(self) -> None:
        """Puts on the clock what a compiled region has computed so far."""
        if self.region is not None:
            self.region.flush()

    def _host_until(self, time: float, name: str) -> None:
        """Keeps the host busy or waiting until `time`, and records that as `name`."""
        if self.lanes is not None:
            self.lanes.note(HOST, name, self.host, time)
        self.host = max(self.host, time)

    # Waiting and reading

    def reading(self) -> Reading:
        """Returns the time when host and device are done with what was issued so far."""
        return Reading(max(self.done(), self.host), self.busy, self.issuing, self.backward)

    def done(self, stream: int | None = None) -> float:
        """Returns when the device finishes the work of a stream, or of all streams."""
        self.settle()
        if stream is None:
            return max(self.streams.values(), default=0.0)
        return self.streams.get(stream, 0.0)

    def synchronize(self, stream: int | None = None) -> None:
        """Makes the host wait for a stream, or for all."""
        self.wait_until(self.done(stream))

    def wait_until(self, time: float) -> None:
        """Makes the host wait until a time of the device."""
        self._host_until(time, "waits for the GPU")
        self.host += rates.SYNCHRONIZE * self.slowness

    def wait_for_batch(self, time: float) -> None:
        """Makes the host wait until a DataLoader worker has a batch ready."""
        self.settle()
        self._host_until(time, "waits for a batch")

    def record(self, stream: int) -> float:
        """Records an event on a stream, and returns when the stream passes it."""
        self.settle()
        self.host += rates.CALL * self.slowness
        end = self.streams[stream] = max(self.host, self.streams.get(stream, 0.0))
        return end

    def hold(self, stream: int, time: float) -> None:
        """Delays the further work of a stream until `time`."""
        self.settle()
        self.host += rates.CALL * self.slowness
        self.streams[stream] = max(time, self.streams.get(stream, 0.0))

    def passed(self, time: float) -> bool:
        """Returns whether a time of the device is in the host's past. Each call advances the host, so a polling loop
        ends.
        """
        self.host += rates.CALL * self.slowness
        return time <= self.host
