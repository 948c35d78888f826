"""The folder of a run: its page, its report as JSON, a snapshot for PyTorch's viewer, and a picture over time."""

import dataclasses
import importlib.util
import os
import shutil
from pathlib import Path

from simgpu.allocator import snapshot
from simgpu.device.machine import Machine
from simgpu.report import html, stored
from simgpu.report.report import Report
from simgpu.report.watch import Watch

PAGE, HTML, REPORT, SNAPSHOT, PICTURE = "page.txt", "report.html", "report.json", "snapshot.pickle", "timeline.png"
DIFFERENCE = {"schema", "grown", "before", "after", "rows"}
"""Fields of the report.json of a diff."""
FILES = "files"
"""The folder for files that the program wrote and that hold simulated tensors."""
NEWEST = 100_000
"""Events that the snapshot holds, the newest."""


def prepare(folder: Path) -> Path:
    """The folder, made if there is none. What an earlier run or diff wrote there is removed: it has a report.

    ValueError if the folder cannot be made, or has a file by one of these names that no run wrote.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {str(folder)!r} cannot be made: {error.strerror}") from None
    there = [folder / name for name in (PAGE, HTML, SNAPSHOT, PICTURE, FILES, REPORT) if os.path.lexists(folder / name)]
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
        found = stored.read(folder / REPORT, "")
        if not found.keys() >= DIFFERENCE:
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
    return described(folder, report)


def described(folder: Path, report: Report) -> Report:
    """Writes pages, report and picture next to a snapshot, and returns the report with a line about each file."""
    said = [f"{folder / HTML}: this page with a timeline, to open in a browser"]
    if (folder / SNAPSHOT).exists():
        said.append(f"{folder / SNAPSHOT}: open it at https://pytorch.org/memory_viz")
    if report.timeline is None:
        pass
    elif importlib.util.find_spec("matplotlib") is None:
        said.append("no picture: matplotlib is not installed")
    else:
        from simgpu.report import picture

        picture.draw(report, folder / PICTURE)
        said.append(f"{folder / PICTURE}: memory over the run")
    report = dataclasses.replace(report, written=tuple(said))
    report.save(folder / REPORT)
    (folder / HTML).write_text(html.document(report), encoding="utf-8")
    (folder / PAGE).write_text(str(report), encoding="utf-8")
    return report


def write_texts(folder: Path, document: dict, page: str, web_page: str) -> None:
    """Writes the report, the page and the HTML file of what is no run."""
    (folder / REPORT).write_text(stored.written(document), encoding="utf-8")
    (folder / HTML).write_text(web_page, encoding="utf-8")
    (folder / PAGE).write_text(page, encoding="utf-8")
