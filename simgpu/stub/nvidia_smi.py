"""Stands in for `nvidia-smi` in a run: it describes the simulated GPU.

It answers `--query-gpu=FIELDS --format=csv[,noheader][,nounits]` and `-L`, and prints a small table otherwise; with
`-i`, of the devices that it names. The memory in use is that of the processes which left a note of it in the folder
`$MOCK_USED` (the meta engine's do); on the stub engine, where each process counts its own, none is shown.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

DRIVER, CUDA = "580.65.06", "13.0"
MIB = 2**20
UUID = "GPU-00000000-0000-0000-0000-0000000000"
NO_DEVICE = 6  # nvidia-smi's status for "a query to find an object was unsuccessful" (its manual, RETURN VALUE)


def folder() -> Path:
    """The folder that holds a program `nvidia-smi`, which runs this module; it is made where it is missing."""
    from simgpu.stub import scripts
    from simgpu.stub.engine import home

    program = home() / "bin" / "smi" / "nvidia-smi"
    # Inductor starts it often: -I and -S spare it the environment's packages and the run's own preparation.
    return scripts.write(program, shlex.join([sys.executable, "-I", "-S", __file__])).parent


def note(folder: str, device: int, used: int) -> None:
    """Notes in a folder that this process uses `used` bytes of a device now."""
    Path(folder, f"memory-{os.getpid()}").write_text(f"{device} {used}")


def _used(device: int) -> int:
    """MiB of a device that processes which still run have noted."""
    found = 0
    for path in Path(os.environ["MOCK_USED"]).glob("memory-*") if "MOCK_USED" in os.environ else ():
        try:
            os.kill(int(path.name.split("-")[1]), 0)
            where, used = map(int, path.read_text().split())
        except (OSError, ValueError):
            continue
        found += used if where == device else 0
    return found // MIB


def _chosen(arguments: list[str], count: int) -> list[int]:
    """The devices that `-i 0,1`, `--id 0` or `--id=GPU-...` names, all of them without it."""
    for at, one in enumerate(arguments):
        name, equals, value = one.partition("=")
        if name in ("-i", "--id"):
            wanted = (value if equals else "".join(arguments[at + 1 : at + 2])).split(",")
            return [index for index in range(count) if {str(index), f"{UUID}{index:02}"} & set(wanted)]
    return list(range(count))


def main(arguments: list[str]) -> int:
    """Answers a command line; returns the exit status."""
    total = int(os.environ.get("MOCK_TOTAL", 0)) // MIB
    count = int(os.environ.get("MOCK_NDEV", 1))
    name = os.environ.get("MOCK_NAME", "NVIDIA GPU")
    query = next((one.split("=", 1)[1] for one in arguments if one.startswith("--query-gpu=")), None)
    form = next((one.split("=", 1)[1] for one in arguments if one.startswith("--format=")), "csv")
    devices = _chosen(arguments, count)
    if not devices:
        print("No devices were found")
        return NO_DEVICE
    if "-L" in arguments or "--list-gpus" in arguments:
        for index in devices:
            print(f"GPU {index}: {name} (UUID: {UUID}{index:02})")
        return 0
    if query is None:
        if any(one.startswith("--query-") for one in arguments):
            return 0  # no process is listed
        print(f"NVIDIA-SMI {DRIVER}    Driver Version: {DRIVER}    CUDA Version: {CUDA}")
        for index in devices:
            print(f"| {index}  {name} | {_used(index)}MiB / {total}MiB |")
        return 0
    fields, units = query.split(","), "nounits" not in form
    if "noheader" not in form:
        print(", ".join(fields))
    for index in devices:
        known = {
            "index": str(index),
            "name": name,
            "gpu_name": name,
            "uuid": f"{UUID}{index:02}",
            "count": str(count),
            "driver_version": DRIVER,
            "compute_cap": ".".join(os.environ.get("MOCK_CC", "90")[i:][: 1 if i == 0 else None] for i in (0, 1)),
            "memory.total": _with_unit(total, "MiB", units),
            "memory.free": _with_unit(total - _used(index), "MiB", units),
            "memory.used": _with_unit(_used(index), "MiB", units),
            "utilization.gpu": _with_unit(0, "%", units),
            "utilization.memory": _with_unit(0, "%", units),
            "clocks.max.sm": _with_unit(1500, "MHz", units),
            "clocks.sm": _with_unit(1500, "MHz", units),
        }
        print(", ".join(known.get(field.strip(), "[N/A]") for field in fields))
    return 0


def _with_unit(value: int, unit: str, units: bool) -> str:
    return f"{value} {unit}" if units else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
