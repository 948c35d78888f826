"""A Python process that a program on the stub engine has started: its files are kept apart too.

`simgpu.running.startup.sitecustomize` calls `begin` before the process runs anything of its own.
"""

from __future__ import annotations

import os
import sys

from simgpu.running.after_import import AfterImport
from simgpu.running.startup import _simgpu_startup as startup
from simgpu.running.stub import untimed
from simgpu.running.stub.saved import Saved


def environment(caches: list[str], path: str) -> dict[str, str]:
    """Returns what a started process needs in its environment. `path`: the PYTHONPATH that this is added to."""
    folders = dict.fromkeys([startup.FOLDER, *filter(None, path.split(os.pathsep))])
    return {"PYTHONPATH": os.pathsep.join(folders), startup.STUB_CACHES: os.pathsep.join(caches)}


def begin() -> None:
    """Puts the run's overlay over this process's files, and prepares torch once it has been imported."""
    saved = Saved(os.environ[startup.STUB_CACHES].split(os.pathsep))

    def torch_imported(torch) -> None:
        untimed.metadata_only(torch)
        saved.torch_imported(torch)

    then = {"torch": torch_imported, "safetensors.torch": saved.safetensors_imported}
    sys.meta_path.insert(0, AfterImport({**then, **untimed.PATCHES}))
