"""A stopwatch for work on the GPU, real or simulated."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from labkit.gpu import GPU, current, simulator_is_on

if TYPE_CHECKING:
    from simgpu.clock.clock import Reading
    from simgpu.clock.estimates import TimeEstimate

__all__ = ["host_work", "memory_rate", "product_rate", "seconds", "stopwatch"]


class Interval(NamedTuple):
    """Holds what one lane does from `start` to `end`, in milliseconds since the stopwatch was started."""

    lane: str
    name: str
    start: float
    end: float


@dataclass
class Timing:
    """Holds what a stopwatch measured; when printed, it names the GPU and says whether it is simulated.

    `ms` is the milliseconds until the GPU was done, and `host_ms` until the host had issued the work. If `host_ms` is
    much smaller, the host ran ahead of the GPU. Both are NaN before the end of the `with`. `lanes` records the
    intervals of each lane, if requested. `estimate` is None for a real GPU. For a simulated one it is the time with the
    range in which published times of such work are, and `ms` is the clock's, without the factor fitted to them.
    """

    name: str
    gpu: GPU
    ms: float = float("nan")
    host_ms: float = float("nan")
    lanes: tuple[Interval, ...] = ()
    estimate: "TimeEstimate | None" = None

    @property
    def seconds(self) -> float:
        """Returns `ms` in seconds."""
        return self.ms / 1e3

    def busy(self) -> dict[str, float]:
        """Returns the share of the time in which each lane works, without waiting. Empty if no lanes were recorded.

        >>> timing.busy()
        {'worker 0': 0.98, 'host': 0.11, 'copy to GPU': 0.08, 'compute': 0.31}
        """
        spans: dict[str, list[tuple[float, float]]] = {}
        for one in self.lanes:
            if not one.name.startswith("waits for"):
                spans.setdefault(one.lane, []).append((max(one.start, 0.0), min(one.end, self.ms)))
        return {lane: _covered(spans[lane]) / self.ms for lane in sorted(spans, key=along_the_pipeline)}

    def bottleneck(self) -> str:
        """Returns the lane that works most of the time, so the others wait for it. Workers count as one lane, by their
        mean.

        On a real GPU, where no lanes are recorded, the text says so.
        """
        busy = self.busy()
        workers = [share for lane, share in busy.items() if lane.startswith("worker")]
        lanes = {lane: share for lane, share in busy.items() if not lane.startswith("worker")}
        lanes |= {"workers": sum(workers) / len(workers)} if workers else {}
        return max(lanes, key=lambda lane: lanes[lane]) if lanes else "no lanes: torch.profiler records a real GPU's"

    def __str__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        text = f"{self.ms:.3f} ms" if self.estimate is None else self.estimate.short
        return f"{label}{text} ({self.gpu})"

    __repr__ = __str__


def _covered(spans: list[tuple[float, float]]) -> float:
    """Returns the milliseconds that the spans cover, counting overlaps once."""
    total = last = 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total


_PIPELINE = ("worker", "pinning thread", "host", "copy to GPU", "compute", "communication", "copy to host")


def along_the_pipeline(lane: str) -> tuple[int, str]:
    """Returns a key that sorts lanes in the order of a batch: workers, pinning thread, host, copies, kernels."""
    place = next((at for at, name in enumerate(_PIPELINE) if lane.startswith(name)), len(_PIPELINE))
    return place, lane.zfill(12)


@contextlib.contextmanager
def stopwatch(name: str = "", lanes: bool = False) -> Iterator[Timing]:
    """Times the work of the `with`, until the GPU is done with it.

        with labkit.stopwatch("step") as t:
            train_step()
        t.ms, t.seconds
        print(t)                        # step: about 12 ms, estimate; 8.7 to 19 ms (simulated A100-80GB)

    It waits for the GPU before and after, and reads CUDA events. On a real GPU the first run of anything is slow,
    because libraries are loaded and memory is requested from the device, so time a second run. On a simulated GPU the
    events read its clock, an estimate from a cost model that is the same in every run. Python and the CPU take no time
    on that clock, except for `host_work`. Raises RuntimeError if no GPU is in use.

    `lanes` records what the host, a DataLoader's workers, the copy engines and the kernels do, for
    `labkit.plots.who_waits`. For one rank of several (`simgpu.one_rank`) it includes the links to the other ranks. On a
    real GPU nothing is recorded; use torch.profiler there.
    """
    timing = Timing(name, current())
    with _recording(timing) if lanes and timing.gpu.simulated else contextlib.nullcontext():
        yield from _timed(timing)


@contextlib.contextmanager
def _recording(timing: Timing) -> Iterator[None]:
    """Records lanes with the simulated GPU's clock, also for stopwatches around this one."""
    from simgpu.clock.tracks import Lanes

    clock = _clock()
    clock.synchronize()
    before, begun = clock.lanes, clock.host
    clock.lanes = record = before or Lanes()
    try:
        yield
    finally:
        clock.lanes = before
    kept = (Interval(one.lane, one.name, *(1e3 * (at - begun) for at in one[2:])) for one in record.intervals)
    timing.lanes = tuple(one for one in kept if one.end > 0)


def _timed(timing: Timing) -> Iterator[Timing]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    before = _clock().reading() if timing.gpu.simulated else None
    begun = _host_seconds(timing.gpu)
    yield timing
    timing.host_ms = 1e3 * (_host_seconds(timing.gpu) - begun)
    torch.cuda.synchronize()  # waits for all streams
    end.record()
    end.synchronize()
    timing.ms = start.elapsed_time(end)
    if before is not None:
        timing.estimate = _estimate(timing, before)


def _estimate(timing: Timing, before: "Reading") -> "TimeEstimate | None":
    from simgpu.clock.estimates import estimated

    passed = _clock().reading().since(before)
    return estimated(passed._replace(seconds=timing.seconds), timing.gpu.name, timing.gpu.host)


def seconds(work: Callable[[], object], repeats: int = 10) -> float:
    """Returns the mean seconds of a call of ``work()`` until the GPU is done.

    The mean is over `repeats` calls after a first one.
    """
    work()
    with stopwatch() as timing:
        for _ in range(repeats):
            work()
    return timing.seconds / repeats


def host_work(seconds: float, name: str = "host work") -> None:
    """Keeps the host busy for `seconds` with work outside PyTorch, such as decoding a batch or writing a log.

    With a real GPU it keeps a core busy. On a simulated one it advances the clock without waiting. Inside a
    DataLoader's worker, that worker is busy and the main process continues. `name` is its name in the lanes. Raises
    ValueError if `seconds` is negative.
    """
    if not seconds >= 0:
        raise ValueError(f"the host cannot work for {seconds} s")
    workers = sys.modules.get("simgpu.clock.workers")
    if workers is not None and workers.here is not None:
        workers.here.pass_time(seconds, name)
        return
    if simulator_is_on():
        _clock().pass_time(seconds, name)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _host_seconds(gpu: GPU) -> float:
    return _clock().host if gpu.simulated else time.perf_counter()


def _clock():
    from simgpu.device.machine import on

    return on().clock


_SIDE = 4096  # side of the square matrices that are multiplied
_REPEATS = 5


def memory_rate() -> float:
    """Returns the bytes per second that the GPU in use reads and writes in a copy of 256 MiB.

    Each byte counts twice, because it is read and written.
    """
    source = torch.zeros(2**28, dtype=torch.uint8, device="cuda")
    to = torch.zeros_like(source)
    return 2 * source.nbytes / seconds(lambda: to.copy_(source), _REPEATS)


def product_rate(dtype: torch.dtype = torch.float32) -> float:
    """Returns the floating-point operations per second that the GPU in use reaches in a matmul of 4096 × 4096 matrices.

    A multiplication and an addition count as two operations.
    """
    a, b = (torch.zeros(_SIDE, _SIDE, dtype=dtype, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return 2 * _SIDE**3 / seconds(lambda: torch.mm(a, b, out=out), _REPEATS)
