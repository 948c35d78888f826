"""The folder of a run: its page, its report as JSON, a snapshot for PyTorch's viewer, and a picture over time."""

import dataclasses
import importlib.util
from pathlib import Path

from simgpu.machine import Machine
from simgpu.memory import snapshot
from simgpu.report.report import Report
from simgpu.report.watch import Watch

PAGE, REPORT, SNAPSHOT, PICTURE = "page.txt", "report.json", "snapshot.pickle", "timeline.png"
NEWEST = 100_000
"""Events that the snapshot holds, the newest."""


def prepare(folder: Path) -> Path:
    """The folder, made if it is not there. ValueError if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {str(folder)!r} cannot be made: {error.strerror}") from None
    return folder


def record(machine: Machine) -> None:
    """Starts the memory history that the snapshot is made of."""
    machine.allocator.record_history("all", context="all", max_entries=NEWEST)


def write(folder: Path, report: Report, watch: Watch) -> Report:
    """Writes all of it, and returns the report with a line about each file."""
    said = []
    snapshot.write(watch.machine.allocator.snapshot(), folder / SNAPSHOT)
    said.append(f"{folder / SNAPSHOT}: open it at https://pytorch.org/memory_viz")
    if importlib.util.find_spec("matplotlib") is None:
        said.append("no picture: matplotlib is not installed")
    else:
        from simgpu.report import picture

        picture.draw(report, watch, folder / PICTURE)
        said.append(f"{folder / PICTURE}: memory over the run")
    report = dataclasses.replace(report, written=tuple(said))
    report.save(folder / REPORT)
    (folder / PAGE).write_text(str(report), encoding="utf-8")
    return report
