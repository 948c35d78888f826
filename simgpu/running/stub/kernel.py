"""The process of a Jupyter kernel on the stub engine: `python -m simgpu.running.stub.kernel -f CONNECTION`."""

from __future__ import annotations

import ctypes
import os
import sys
from types import ModuleType

from simgpu.running.after_import import AfterImport
from simgpu.running.stub import compiled, untimed
from simgpu.stub.kernel import RUNTIME


def torch_imported(torch: ModuleType) -> None:
    """Prepares torch as in a run: `repr` without values, and values that are known."""
    from simgpu.running.stub.known import Known

    untimed.metadata_only(torch)
    runtime = ctypes.CDLL(os.environ[RUNTIME])
    known = Known(torch, runtime)
    known.begin()
    compiled.follow(torch, known)


def main() -> None:
    """Starts the kernel."""
    from ipykernel import kernelapp

    sys.meta_path.insert(0, AfterImport({"torch": torch_imported, **untimed.PATCHES}))
    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
