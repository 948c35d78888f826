"""The simulated GPU's clock: what the host has issued by when, and when the device is done with it.

The host issues work and goes on; each stream works it off in order. Kernels share one engine whatever their stream,
for a kernel is costed as if it had the whole GPU; copies to and from the host have an engine each, and so has each link
to other GPUs in each direction: they run beside kernels of another stream. Times are seconds since the GPU was switched
on. All is computed from what is issued, so two runs of a script give the same times; the wall clock of this machine
plays no part in it, and `time.perf_counter()` says nothing about the simulated GPU.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any

from simgpu.hardware.gpus import Spec
from simgpu.timing import rates
from simgpu.timing.communication import Transfer
from simgpu.timing.lanes import COMMUNICATION, COMPUTE, COPY_TO_GPU, COPY_TO_HOST, HOST, ISSUES, Lanes

KERNELS, TO_GPU, TO_HOST = "kernels", "to GPU", "to host"
_COPYING = {TO_GPU: COPY_TO_GPU, TO_HOST: COPY_TO_HOST}


class Engine:
    """A part of the GPU that does one thing at a time: what is ready first is not held up by what is not."""

    __slots__ = ("_gaps", "free")

    def __init__(self) -> None:
        self.free = 0.0  # from here on nothing is planned
        self._gaps: deque[tuple[float, float]] = deque()  # free times before that which later work may still use

    def take(self, ready: float, seconds: float, now: float) -> float:
        """When work of `seconds` that is `ready` then begins. Nothing can be ready before `now`, the host's time."""
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
    """What a CUDA graph holds while it is captured, and then: its kernels and copies, one after another.

    `streams`: those that belong to it. `seconds`: of the device. `nodes`: kernels and copies. What streams do beside
    each other in a graph is counted one after another. `computed`: functions that compute its values anew, where there
    are values.
    """

    def __init__(self, stream: int) -> None:
        self.streams = {stream}
        self.seconds = 0.0
        self.nodes = 0
        self.computed: list = []

    def add(self, seconds: float, nodes: int = 1) -> None:
        """Kernels or copies more."""
        self.seconds += seconds
        self.nodes += nodes


def checked_slowness(factor: float) -> float:
    """A factor on the times of the host. ValueError if it is no positive number."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise ValueError(f"host={factor!r}: wanted a number above 0, such as 2 for a host half as fast")
    return float(factor)


class Clock:
    """Host and device timelines of a GPU of kind `spec`.

    `slowness`: how many times as long as the host of `rates` this one takes for a launch, an operator, a view, or
    another call of PyTorch's or CUDA's; ValueError if it is no positive number. `host`: the host's time in seconds.
    `streams`: when each stream, by its id or, of NCCL's, by a name, is done with what it was given. `lanes`: what is
    recorded of all that is issued, or None. `region`: what is told when a time is wanted that the kernels of a compiled
    region have to be on the clock for (its `flush`), or None.
    """

    def __init__(self, spec: Spec, slowness: float = 1.0) -> None:
        self.spec = spec
        self.slowness = checked_slowness(slowness)
        self._launch, self._view = rates.LAUNCH * self.slowness, rates.VIEW * self.slowness
        self.host = 0.0
        self.streams: dict[Hashable, float] = {}
        self.lanes: Lanes | None = None
        self.region: Any = None
        self._engines: dict[Hashable, Engine] = {name: Engine() for name in (KERNELS, TO_GPU, TO_HOST)}
        self._kernels = self._engines[KERNELS]
        self._queue: deque[float] = deque(maxlen=rates.QUEUE)
        self.capture: Capture | None = None  # of a CUDA graph, which is under way

    # What the host issues

    def pass_time(self, seconds: float, name: str = "host work") -> None:
        """The host does something else meanwhile, called `name`. ValueError if `seconds` is negative or no end."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"the host cannot work for {seconds} s")
        self.settle()
        self._host_until(self.host + seconds, name)

    def view(self) -> None:
        """An operator that only makes a view."""
        if self.region is None:
            self.host += self._view

    def launch(
        self, stream: int, work: float, kernels: int = 1, overhead: float = rates.OPERATOR, name: str = ""
    ) -> None:
        """An operator of so many kernels, which need `work` seconds of the GPU beside their fixed cost.

        `overhead`: seconds of the host of `rates` beside the launches. `name`: what the lanes call it.
        """
        launch, begun = self._launch, self.host
        if self.capture is not None and stream in self.capture.streams:
            self.host += overhead * self.slowness + kernels * launch
            self.capture.add(work + kernels * rates.KERNEL, kernels)
            if self.lanes is not None:
                self.lanes.note(HOST, ISSUES, begun, self.host)
            return
        issued = begun + overhead * self.slowness + launch
        queue = self._queue
        if len(queue) == rates.QUEUE:
            issued = max(issued, queue[0])
        self.host = issued
        begin = self._kernels.take(max(issued, self.streams.get(stream, 0.0)), work, issued)
        end = begin + work + kernels * rates.KERNEL
        if kernels > 1:
            self.host += (kernels - 1) * launch
            end = max(end, self.host + rates.KERNEL)
        self.streams[stream] = end
        queue.append(end)
        if self.lanes is not None:
            self.lanes.note(HOST, ISSUES, begun, self.host)
            self.lanes.note(COMPUTE, name, begin, end)

    def copy(self, stream: int, nbytes: int, direction: str, *, pinned: bool, blocking: bool) -> None:
        """A copy of `nbytes` over the link: TO_GPU or TO_HOST.

        The host waits for it if it is `blocking`, and if its side is not `pinned` memory: then the driver copies
        piece by piece through a buffer of its own.
        """
        self.settle()
        self._host_until(self.host + (rates.OPERATOR + rates.LAUNCH) * self.slowness, ISSUES)
        seconds = nbytes / (self.spec.host_link * (rates.PINNED if pinned else rates.PAGEABLE))
        if self.capture is not None and stream in self.capture.streams:
            self.capture.add(seconds + rates.KERNEL)
            return
        begin = self._engines[direction].take(max(self.host, self.streams.get(stream, 0.0)), seconds, self.host)
        self.streams[stream] = begin + seconds + rates.KERNEL
        if self.lanes is not None:
            self.lanes.note(_COPYING[direction], "pinned" if pinned else "pageable", begin, self.streams[stream])
        if blocking or not pinned:
            self.synchronize(stream)

    def communicate(self, stream: int, own: Hashable, transfer: Transfer) -> float:
        """A collective, a send or a receive on the stream `own`, after what `stream` was given so far: when it is done.

        By itself it waits for no other rank.
        """
        ready = self.asked(stream, own)
        if self.capture is not None and stream in self.capture.streams:
            self.capture.add(transfer.seconds)
            return self.host
        engine = self._engines.setdefault(transfer.link, Engine())
        return self.carried(own, transfer, engine.take(ready, transfer.seconds, self.host))

    def asked(self, stream: int, own: Hashable) -> float:
        """The host asks for a transfer: when the streams would let it begin."""
        self.settle()
        self._host_until(self.host + (rates.OPERATOR + rates.LAUNCH) * self.slowness, ISSUES)
        return max(self.host, self.streams.get(stream, 0.0), self.streams.get(own, 0.0))

    def carried(self, own: Hashable, transfer: Transfer, begin: float) -> float:
        """A transfer that begins then on the stream `own`: when it is done."""
        end = self.streams[own] = begin + transfer.seconds
        if self.lanes is not None:
            self.lanes.note(COMMUNICATION, transfer.name, begin, end)
        return end

    def pinning(self, nbytes: int) -> float:
        """The seconds that a thread of the host needs to copy so many bytes into pinned memory (`rates.PAGEABLE`)."""
        return nbytes / (self.spec.host_link * rates.PAGEABLE)

    def replay(self, stream: int, graph: Capture) -> None:
        """A captured CUDA graph is launched, at once."""
        self.settle()
        self.launch(stream, max(0.0, graph.seconds - rates.KERNEL), overhead=rates.CALL, name="CUDA graph")

    def settle(self) -> None:
        """What a compiled region has computed so far goes on the clock."""
        if self.region is not None:
            self.region.flush()

    def _host_until(self, time: float, name: str) -> None:
        """The host is busy, or waits, until then."""
        if self.lanes is not None:
            self.lanes.note(HOST, name, self.host, time)
        self.host = max(self.host, time)

    # Waiting

    def done(self, stream: int | None = None) -> float:
        """When the device is done with what it was given on a stream, or on all."""
        self.settle()
        if stream is None:
            return max(self.streams.values(), default=0.0)
        return self.streams.get(stream, 0.0)

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all."""
        self.wait_until(self.done(stream))

    def wait_until(self, time: float) -> None:
        """The host waits for a moment of the device's."""
        self._host_until(time, "waits for the GPU")
        self.host += rates.SYNCHRONIZE * self.slowness

    def wait_for_batch(self, time: float) -> None:
        """The host waits for a batch that a DataLoader's worker has ready then."""
        self.settle()
        self._host_until(time, "waits for a batch")

    def record(self, stream: int) -> float:
        """When a stream comes past an event that is recorded now."""
        self.settle()
        self.host += rates.CALL * self.slowness
        end = self.streams[stream] = max(self.host, self.streams.get(stream, 0.0))
        return end

    def hold(self, stream: int, time: float) -> None:
        """Work given to a stream from now on begins no earlier than `time`."""
        self.settle()
        self.host += rates.CALL * self.slowness
        self.streams[stream] = max(time, self.streams.get(stream, 0.0))

    def passed(self, time: float) -> bool:
        """Whether a moment of the device's is over for the host. Asking takes time, so that a loop that asks ends."""
        self.host += rates.CALL * self.slowness
        return time <= self.host
