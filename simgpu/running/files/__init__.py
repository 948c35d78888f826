"""The user's files in a run without values: what existed before is not changed, and the program does not notice.

`overlay.py` decides where each file is; `calls.py`, `native.py` and `tensors.py` ask it for Python's operations, for
libraries that open files natively, and for what saves and loads tensors. With values tensors have bytes, there is no
overlay, and the program writes to its files as it does on a GPU.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.patches import Patches
from simgpu.report.files import File
from simgpu.running.files import calls
from simgpu.running.files.overlay import MAGIC, Overlay
from simgpu.running.startup import _simgpu_startup as startup

if TYPE_CHECKING:
    from simgpu.device.machine import Machine

VARIABLE = startup.FILES
"""The environment variable that names the scratch folder, for the processes that the program starts."""


class KeptApart:
    """The overlay of a run, and its scratch folder."""

    def __init__(self, overlay: Overlay, stays: bool):
        self._overlay, self._stays = overlay, stays
        self._has_calls = False

    @property
    def folder(self) -> str:
        """Returns the folder of the files after the run, "" if they are removed."""
        return self._overlay.folder if self._stays else ""

    def patch_calls(self, patches: Patches) -> None:
        """Puts the overlay below Python's own file operations. It needs no torch."""
        if not self._has_calls:
            self._has_calls = True
            calls.patch(patches, self._overlay)

    def patch(self, patches: Patches, machine: "Machine") -> None:
        """Puts the overlay between the program and the file system. `machine` has placeholder values."""
        from simgpu.running.files import native, tensors  # here, because they import torch

        self.patch_calls(patches)
        native.patch(patches)
        tensors.patch(patches, machine)
        assert machine.placeholder_values is not None
        machine.placeholder_values.escaped = functools.partial(self._overlay.escape, arrays=True)

    def finish(self) -> tuple[File, ...]:
        """Ends the program's writing; returns what the report says of files."""
        rows = self._overlay.finish(MAGIC)
        return rows if self._stays else tuple(one._replace(where="") for one in rows)


@contextlib.contextmanager
def kept_apart(folder: Path | None):
    """Inside, what the program writes may be kept apart: in `folder`, or in a temporary one that is removed.

    Yields a KeptApart. Started processes find the folder in the environment, and `of_this_run` returns their KeptApart.
    """
    scratch = tempfile.mkdtemp(prefix="simgpu-") if folder is None else str(folder)
    overlay, before = Overlay(scratch), os.environ.get(VARIABLE)
    os.environ[VARIABLE] = overlay.folder
    try:
        yield KeptApart(overlay, folder is not None)
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        overlay.finish(MAGIC)  # once more, for a run that ended otherwise
        overlay.close()
        if folder is None:
            shutil.rmtree(scratch, ignore_errors=True)


def from_the_start() -> None:
    """Puts the overlay of the run that started this process below its file operations, before it imports torch."""
    apart = of_this_run()
    if apart is not None:
        apart.patch_calls(Patches())


@functools.cache
def _at(folder: str) -> KeptApart:
    return KeptApart(Overlay(folder), True)


def of_this_run() -> KeptApart | None:
    """Returns that of the run which started this process, and None if there is none. It is not finished here."""
    folder = os.environ.get(VARIABLE)
    return _at(folder) if folder and os.path.isdir(folder) else None
