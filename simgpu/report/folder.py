"""The folder of a run: its page, its report as JSON, a snapshot for PyTorch's viewer, and a picture over time."""

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path

from simgpu.allocator import snapshot
from simgpu.device.machine import Machine
from simgpu.report.report import Report
from simgpu.report.timeline import Timeline
from simgpu.report.watch import Watch

PAGE, REPORT, SNAPSHOT, PICTURE = "page.txt", "report.json", "snapshot.pickle", "timeline.png"
FILES = "files"
"""The folder for files that the program wrote and that hold simulated tensors."""
NEWEST = 100_000
"""Events that the snapshot holds, the newest."""


def prepare(folder: Path) -> Path:
    """The folder, made if there is none. What an earlier run wrote there is removed: it has a report.

    ValueError if the folder cannot be made, or has a file by one of these names that no run wrote.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {str(folder)!r} cannot be made: {error.strerror}") from None
    there = [folder / name for name in (PAGE, SNAPSHOT, PICTURE, FILES, REPORT) if os.path.lexists(folder / name)]
    if there and not _of_a_run(folder):
        raise ValueError(
            f"{there[0]} exists, and no run wrote it (there is no {REPORT} of one beside it): wanted a new folder, an "
            "empty one, or that of an earlier run"
        )
    for path in there:  # the report last, so that what an interrupt leaves is still a run's
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return folder


def _of_a_run(folder: Path) -> bool:
    try:
        Report.load(folder / REPORT)
    except (OSError, ValueError):
        return False
    return True


def record(machine: Machine) -> None:
    """Starts the memory history that the snapshot is made of."""
    machine.allocator.record_history("all", context="all", max_entries=NEWEST)


def write(folder: Path, report: Report, watch: Watch) -> Report:
    """Writes all of it, and returns the report with a line about each file."""
    report.save(folder / REPORT)  # first: it says whose the folder is
    snapshot.write(watch.machine.allocator.snapshot(), folder / SNAPSHOT)
    return described(folder, report, watch.timeline)


def described(folder: Path, report: Report, timeline: Timeline | None) -> Report:
    """Writes the picture, the report and the page next to a snapshot, and returns the report with a line about each.

    `timeline`: what is drawn, None where no memory was used."""
    said = []
    if (folder / SNAPSHOT).exists():
        said.append(f"{folder / SNAPSHOT}: open it at https://pytorch.org/memory_viz")
    if timeline is None:
        pass
    elif importlib.util.find_spec("matplotlib") is None:
        said.append("no picture: matplotlib is not installed")
    else:
        from simgpu.report import picture

        picture.draw(report, timeline, folder / PICTURE)
        said.append(f"{folder / PICTURE}: memory over the run")
    report = dataclasses.replace(report, written=tuple(said))
    report.save(folder / REPORT)
    (folder / PAGE).write_text(str(report), encoding="utf-8")
    return report
