"""A stopwatch for work on the GPU, real or simulated."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from labkit.gpu import GPU, current


@dataclass
class Timing:
    """What a stopwatch read; printed, it says on which GPU, and whether that one is simulated.

    `ms`: milliseconds until the GPU was done. `host_ms`: until the host had issued the work; if much less, the host ran
    ahead of the GPU. NaN before the end of the `with`.
    """

    name: str
    gpu: GPU
    ms: float = float("nan")
    host_ms: float = float("nan")

    @property
    def seconds(self) -> float:
        """`ms` in seconds."""
        return self.ms / 1e3

    def __str__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"{label}{self.ms:.3f} ms ({self.gpu})"

    __repr__ = __str__


@contextlib.contextmanager
def stopwatch(name: str = "") -> Iterator[Timing]:
    """Times the work of the `with`, until the GPU is done with it.

        with labkit.stopwatch("step") as t:
            train_step()
        t.ms, t.seconds
        print(t)                        # step: 12.345 ms (simulated A100-80GB)

    It waits for the GPU before and after, and reads CUDA events. On a real GPU the first run of anything is slow
    (libraries are loaded, memory is taken from the device): time a second one. On a simulated GPU the events read its
    clock, an estimate from a cost model that is the same in every run; what Python and the CPU do meanwhile takes no
    time there but where `host_work` says so. Raises RuntimeError if no GPU is in use.
    """
    timing = Timing(name, current())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    begun = _host_seconds(timing.gpu)
    yield timing
    timing.host_ms = 1e3 * (_host_seconds(timing.gpu) - begun)
    torch.cuda.synchronize()  # all streams
    end.record()
    end.synchronize()
    timing.ms = start.elapsed_time(end)


def host_work(seconds: float) -> None:
    """The host is busy for so long with something that is not PyTorch's: decoding a batch, writing a log.

    On a real GPU it is; on a simulated one its clock is told, and nobody waits. ValueError if `seconds` is negative.
    """
    if not seconds >= 0:
        raise ValueError(f"the host cannot work for {seconds} s")
    if current().simulated:
        _clock().pass_time(seconds)
        return
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _host_seconds(gpu: GPU) -> float:
    return _clock().host if gpu.simulated else time.perf_counter()


def _clock():
    from simgpu.machine import on

    return on().clock
