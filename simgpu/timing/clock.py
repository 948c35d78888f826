"""The simulated GPU's clock: what the host has issued by when, and when the device is done with it.

The host issues work and goes on; each stream works it off in order. Kernels share one engine whatever their stream,
for a kernel is costed as if it had the whole GPU; copies to and from the host have an engine each, and so run beside
kernels of another stream. Times are seconds since the GPU was switched on. All is computed from what is issued, so two
runs of a script give the same times; the wall clock of this machine plays no part in it, and `time.perf_counter()` says
nothing about the simulated GPU.
"""

from collections import deque

from simgpu.hardware.gpus import Spec
from simgpu.timing import rates

KERNELS, TO_GPU, TO_HOST = "kernels", "to GPU", "to host"


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


class Clock:
    """Host and device timelines of a GPU of kind `spec`.

    `host`: the host's time in seconds. `streams`: when each stream, by its id, is done with what it was given.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.host = 0.0
        self.streams: dict[int, float] = {}
        self._engines = {name: Engine() for name in (KERNELS, TO_GPU, TO_HOST)}
        self._kernels = self._engines[KERNELS]
        self._queue: deque[float] = deque(maxlen=rates.QUEUE)
        self.capture: Capture | None = None  # of a CUDA graph, which is under way

    # What the host issues

    def pass_time(self, seconds: float) -> None:
        """The host does something else meanwhile. ValueError if `seconds` is negative."""
        if not seconds >= 0:
            raise ValueError(f"the host cannot work for {seconds} s")
        self.host += seconds

    def launch(self, stream: int, work: float, kernels: int = 1, overhead: float = rates.OPERATOR) -> None:
        """An operator of so many kernels, which need `work` seconds of the GPU beside their fixed cost.

        `overhead`: seconds of the host beside the launches.
        """
        if self.capture is not None and stream in self.capture.streams:
            self.host += overhead + kernels * rates.LAUNCH
            self.capture.add(work + kernels * rates.KERNEL, kernels)
            return
        issued = self.host + overhead + rates.LAUNCH
        queue = self._queue
        if len(queue) == rates.QUEUE:
            issued = max(issued, queue[0])
        self.host = issued
        begin = self._kernels.take(max(issued, self.streams.get(stream, 0.0)), work, issued)
        end = begin + work + kernels * rates.KERNEL
        if kernels > 1:
            self.host += (kernels - 1) * rates.LAUNCH
            end = max(end, self.host + rates.KERNEL)
        self.streams[stream] = end
        queue.append(end)

    def copy(self, stream: int, nbytes: int, direction: str, *, pinned: bool, blocking: bool) -> None:
        """A copy of `nbytes` over the link: TO_GPU or TO_HOST.

        The host waits for it if it is `blocking`, and if its side is not `pinned` memory: then the driver copies
        piece by piece through a buffer of its own.
        """
        self.host += rates.OPERATOR + rates.LAUNCH
        seconds = nbytes / (self.spec.host_link * (rates.PINNED if pinned else rates.PAGEABLE))
        if self.capture is not None and stream in self.capture.streams:
            self.capture.add(seconds + rates.KERNEL)
            return
        begin = self._engines[direction].take(max(self.host, self.streams.get(stream, 0.0)), seconds, self.host)
        self.streams[stream] = begin + seconds + rates.KERNEL
        if blocking or not pinned:
            self.synchronize(stream)

    def replay(self, stream: int, graph: Capture) -> None:
        """A captured CUDA graph is launched, at once."""
        self.launch(stream, max(0.0, graph.seconds - rates.KERNEL), overhead=rates.CALL)

    # Waiting

    def done(self, stream: int | None = None) -> float:
        """When the device is done with what it was given on a stream, or on all."""
        if stream is None:
            return max(self.streams.values(), default=0.0)
        return self.streams.get(stream, 0.0)

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all."""
        self.wait_until(self.done(stream))

    def wait_until(self, time: float) -> None:
        """The host waits for a moment of the device's."""
        self.host = max(self.host, time) + rates.SYNCHRONIZE

    def record(self, stream: int) -> float:
        """When a stream comes past an event that is recorded now."""
        self.host += rates.CALL
        end = self.streams[stream] = max(self.host, self.streams.get(stream, 0.0))
        return end

    def hold(self, stream: int, time: float) -> None:
        """Work given to a stream from now on begins no earlier than `time`."""
        self.host += rates.CALL
        self.streams[stream] = max(time, self.streams.get(stream, 0.0))

    def passed(self, time: float) -> bool:
        """Whether a moment of the device's is over for the host. Asking takes time, so that a loop that asks ends."""
        self.host += rates.CALL
        return time <= self.host
