"""How much memory the host has left for values, asked before it is taken: a machine that swaps answers nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simgpu.errors import HostMemoryError

KEPT_FREE = 256 * 2**20  # bytes that are left to all else: temporaries of operators, the libraries, the notebook
LOOK_AGAIN = 8  # what was found free is believed until this part of it was taken
_CGROUPS = (  # (limit, used): of version 2, of version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_CACHE = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _of_table(path: str, name: str) -> int | None:
    """A row of a table of names and numbers, "MemAvailable:   123 kB" or "inactive_file 123", in bytes."""
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                words = line.split()
                return int(words[1]) * (1024 if words[-1] == "kB" else 1)
    except OSError:
        pass
    return None


def _of_group() -> int | None:
    """What the limit of the control group (a container's) leaves; files that are cached can be given up."""
    for (limit, used), cache in zip(_CGROUPS, _CACHE, strict=True):
        most, taken = _number(limit), _number(used)
        if most is not None and taken is not None:
            return most - taken + (_of_table(cache, "inactive_file") or 0)
    return None


def available() -> int | None:
    """Bytes that this process can take without swapping, or None where the system does not tell."""
    found = [one for one in (_of_table("/proc/meminfo", "MemAvailable:"), _of_group()) if one is not None]
    return max(0, min(found)) if found else _of_system()


def _of_system() -> int | None:
    """The memory that is free by POSIX's sysconf, where there is no /proc."""
    import os

    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


class HostMemory:
    """Says no before the host's memory is full. `ask`: what is free, bytes, or None if it cannot be known."""

    def __init__(self, ask: Callable[[], int | None] = available):
        self._ask = ask
        self._free: int | None = 0
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """To be called before `nbytes` are taken. HostMemoryError if they would leave less than KEPT_FREE."""
        self._taken += nbytes
        if self._free is None or self._taken * LOOK_AGAIN <= self._free - KEPT_FREE:
            return
        self._taken = nbytes
        self._free = self._ask()
        if self._free is not None and nbytes > self._free - KEPT_FREE:
            raise HostMemoryError(
                f"values=True keeps the values of all tensors in the host's memory: {nbytes} B "
                f"({nbytes / 2**30:.2f} GiB) are wanted, and {self._free} B ({self._free / 2**30:.2f} GiB) are free, "
                f"of which {KEPT_FREE >> 20} MiB are left alone. Simulate without values=True, or a smaller model."
            )
