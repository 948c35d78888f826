"""Runs at the start of each Python process that a simulated run starts, and simulates the GPU there too.

PYTHONPATH names this folder first, so Python imports this file before the program. It writes a record of the process,
keeps its files apart in a run without values, runs the environment's own sitecustomize, and simulates the GPU once
torch has been imported. Only Python's standard library is used here, because the process may be in another environment.
"""

import contextlib
import os
import sys

if __name__ == "sitecustomize":
    from _simgpu_startup import FILES, FOLDER, RECORDS, STUB_CACHES, note  # of this folder, the first on the path
else:
    from simgpu.running.startup._simgpu_startup import FILES, FOLDER, RECORDS, STUB_CACHES, note


def _ancestors(pid):
    """The processes that started a process, the nearest first, as far as the system says."""
    found = []
    try:
        while pid > 1:
            found.append(pid)
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return found


class _AfterTorch:
    """A finder that has `begin` called once torch has been imported. It is removed then, and not when a program asks
    whether there is a torch (importlib.util.find_spec)."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        """The spec of torch, whose loader calls `begin`; None for any other module."""
        if name != "torch":
            return None
        found = (one.find_spec(name, path, target) for one in sys.meta_path if one is not self)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module):
                del loader.exec_module
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _begin(self.folder)

            loader.exec_module = exec_module
        return spec


def _with_simgpu(folder, do):
    """Calls `do(settings)` if this environment has simgpu or is that of the run; returns whether it has."""
    from ast import literal_eval
    from importlib.util import find_spec

    with open(os.path.join(folder, "settings")) as file:
        settings = literal_eval(file.read())
    before = list(sys.path)
    if sys.prefix == settings["prefix"] and list(sys.version_info[:2]) == settings["python"]:
        sys.path.append(settings["root"])  # for a process whose path does not lead to simgpu
    try:
        if find_spec("simgpu") is None:
            return False
        do(settings)
        return True
    finally:
        sys.path[:] = before


def _keep_files_apart(settings):
    """Puts the run's overlay below this process's file operations, before the program does anything."""
    from simgpu.running.files import from_the_start

    from_the_start()


def _begin(folder):
    """Simulates the GPU from here on."""

    def begin(settings):
        from simgpu.running import child

        child.begin(folder, settings)

    if os.path.isdir(folder) and not _with_simgpu(folder, begin):  # otherwise the run is over
        note(folder, "unfollowed", executable=sys.executable)


def _begin_on_stubs():
    """Puts the overlay of a run on the stub engine over this process's files, where its environment has simgpu."""
    try:
        from simgpu.running.stub.started import begin
    except ImportError:
        return
    begin()


def _chain():
    """Runs the sitecustomize that Python would have found without this folder."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != FOLDER]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    _folder = os.environ.get(RECORDS)
    if _folder and os.path.isdir(_folder):
        _command = list(getattr(sys, "orig_argv", ()))
        note(_folder, "python", command=_command, ancestors=_ancestors(os.getppid()))
        if os.environ.get(FILES):
            with contextlib.suppress(ImportError, SyntaxError):  # simgpu may be there for another version of Python
                _with_simgpu(_folder, _keep_files_apart)
        sys.meta_path.insert(0, _AfterTorch(_folder))
    elif STUB_CACHES in os.environ:
        _begin_on_stubs()
    _chain()
