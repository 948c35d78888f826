"""The module `time` as a script on a simulated GPU reads it: its clocks are the GPU's, and sleeping takes no time.

Python's own library keeps this machine's clocks, since it waits for what really happens here (DataLoader's workers,
locks with a timeout). Code that took the functions before the run keeps them too. `datetime` is not changed.
A program that has other processes sleeps really too, because it may wait for them.
"""

import sys
import sysconfig
import time

from simgpu.device.machine import Machine
from simgpu.patches import Patches

READING = 1e-6
"""Seconds that a look at a clock takes, so that a loop that waits for a time ends, and no difference is 0."""

_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen"})
_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def patch(patches: Patches, machine: Machine) -> None:
    """Puts the simulated clock into the module `time`."""
    for name in ("time", "perf_counter", "monotonic"):
        real = getattr(time, name)
        patches.apply(time, name, _seconds(real, machine))
        patches.apply(time, f"{name}_ns", _nanoseconds(getattr(time, f"{name}_ns"), machine))
    patches.apply(time, "sleep", _sleep(time.sleep, machine))


def _asked_by_python(frame) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_STDLIB) and not file.startswith(_INSTALLED)


def _read(machine: Machine) -> float:
    machine.clock.pass_time(READING)
    return machine.clock.host


def _seconds(real, machine: Machine):
    start = real() - machine.clock.host

    def simulated() -> float:
        if _asked_by_python(sys._getframe(1)):
            return real()
        return start + _read(machine)

    simulated.__doc__, simulated.__name__ = real.__doc__, real.__name__
    return simulated


def _nanoseconds(real, machine: Machine):
    start = real() - round(machine.clock.host * 1e9)

    def simulated() -> int:
        if _asked_by_python(sys._getframe(1)):
            return real()
        return start + round(_read(machine) * 1e9)

    simulated.__doc__, simulated.__name__ = real.__doc__, real.__name__
    return simulated


def _sleep(real, machine: Machine):
    def sleep(seconds) -> None:
        if _asked_by_python(sys._getframe(1)):
            return real(seconds)
        if machine.has_others:
            real(seconds)
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        return machine.clock.pass_time(seconds)

    return sleep
