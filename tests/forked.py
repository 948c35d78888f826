"""Runs kernels and programs as forks of one process that has imported PyTorch and the other libraries.

To import them takes a program up to ten seconds; a fork of a process that has them takes milliseconds, and is a process
of its own all the same, with the environment, the folder and the arguments it is given. The project's own code isn't
imported before a program's fork, and before a kernel's only simgpu.session. Nor does Python take a fork's modules apart
when the program has ended, because that copies the memory that forks share. What a test says of starting Python, of
its end, or of variables that a library reads when it is imported, needs a new process and `subprocess` instead.

The process with the libraries ("the server") belongs to this process, starts with the first program, and ends with it.
"""

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path

LIBRARIES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "transformers.models.auto.modeling_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)
KERNELS = (  # what kernels have besides
    "IPython",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "pandas",
    "tqdm.auto",
    "yaml",
)
_Popen = subprocess.Popen


def _available() -> bool:
    """Returns whether programs can be forks here: on Linux, where the kernel and the container allow `pidfd_open`."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return sys.platform == "linux"


AVAILABLE = _available()


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python program, whose command begins with Python's path, as a fork of a server."""

    kernel = False

    def _execute_child(self, *arguments):
        given = inspect.signature(super()._execute_child).bind(*arguments).arguments
        env = os.environ if given["env"] is None else given["env"]
        command = list(map(os.fspath, given["args"]))
        request = {"command": command, "cwd": os.fspath(given["cwd"] or Path.cwd()), "env": dict(env)}
        sent = json.dumps(request).encode()
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        self._watcher = socket.socket(socket.AF_UNIX)
        self._watcher.connect(_server(self.kernel))
        socket.send_fds(self._watcher, [len(sent).to_bytes(8, "big")], streams)
        self._watcher.sendall(sent)
        self._said = self._watcher.makefile("rb")
        self.pid = int(self._said.readline())
        self._child_created = True
        self._close_pipe_fds(
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )

    def _internal_poll(self, *_, **__):
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout):
        if self.returncode is None:
            if not select.select([self._watcher], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._said.readline() or -signal.SIGKILL)
            self._said.close()
            self._watcher.close()
        return self.returncode


class Kernel(Popen):
    """The same for a kernel of Jupyter's."""

    kernel = True


def started(command, *arguments, **options) -> subprocess.Popen:
    """Starts a program as `subprocess.Popen` does, and one in Python as a fork."""
    python = AVAILABLE and not isinstance(command, str) and os.fspath(command[0]) == sys.executable
    return (Popen if python else _Popen)(command, *arguments, **options)


@functools.cache
def _server(kernel: bool) -> str:
    """The address of the server of kernels or of other programs. It ends when this process does, however that ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(b"\0" + f"simgpu-tests-{os.getpid()}-{os.urandom(8).hex()}".encode())
    listener.listen(64)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, __file__, str(listener.fileno()), *(["kernel"] if kernel else [])]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = _Popen(command, env=env, pass_fds=[listener.fileno()], start_new_session=True, **streams)
    atexit.register(_stop, process)
    address = listener.getsockname()
    listener.close()
    return address


def _stop(server: subprocess.Popen) -> None:
    server.stdin.close()
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:  # another process holds the other end of its standard input
        server.kill()


class _Kernel:
    """What tqdm and pandas ask for when they are imported, to see whether they are in a notebook."""

    config = ("IPKernelApp",)
    kernel = None


class _Stderr:
    """What `sys.stderr` is when it is written to, for loggers that keep it when they are imported: a kernel replaces
    it afterwards."""

    def __getattr__(self, name):
        return getattr(sys.__stderr__ if sys.stderr is self else sys.stderr, name)


@contextlib.contextmanager
def _as_a_kernel():
    """Imports are as in a kernel."""
    import IPython

    before = sys.stderr, IPython.get_ipython
    sys.stderr, IPython.get_ipython = _Stderr(), _Kernel
    builtins.get_ipython = _Kernel
    yield
    del builtins.get_ipython
    sys.stderr, IPython.get_ipython = before


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # the program that needs it says so
            importlib.import_module(name)


def _serve(descriptor: int, kernel: bool) -> dict | None:
    """Forks for each request until its caller ends. Returns the request in the fork that is to run it, else None."""
    listener = socket.socket(fileno=descriptor)
    if kernel:
        with _as_a_kernel():
            _import(KERNELS + LIBRARIES)
        sys.path.insert(0, str(Path(__file__).parents[1]))
        _import(("simgpu.session",))
        del sys.path[0]
    else:
        _import(LIBRARIES)
    gc.collect()
    gc.freeze()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _watch(caller)
        caller.close()
        _reap(os.WNOHANG)
    _reap(0)
    return None


def _reap(how: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


def _watch(caller: socket.socket) -> dict:
    """Forks the program, and says how it ended. It ends with its caller."""
    length, descriptors, _, _ = socket.recv_fds(caller, 8, 3)
    with caller.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(length, "big")))
    watcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()  # before anybody knows the process, whom Jupyter signals by its group
        caller.sendall(b"%d\n" % os.getpid())
        caller.close()
        return request | {"descriptors": descriptors, "parent": watcher}
    ended = os.pidfd_open(pid)
    if ended not in select.select([caller, ended], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        caller.sendall(b"%d\n" % status)
    finally:
        os._exit(0)


def _become(request: dict) -> None:
    """Makes this fork the program that was asked for, and runs it."""
    for number, descriptor in enumerate(request["descriptors"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "JPY_PARENT_PID" in os.environ:  # with which a kernel ends
        os.environ["JPY_PARENT_PID"] = str(request["parent"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    _run(request["command"][1:])


def _run(arguments: list[str]) -> None:
    """Runs `-m MODULE …`, `-c CODE …` or `PATH …` as Python does."""
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    while arguments[0].startswith("-X"):
        arguments = arguments[1:]
    if arguments[0] == "-m":
        sys.path[:1] = [os.getcwd(), *added]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path[:1] = ["", *added]
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[:1] = [str(Path(arguments[0]).parent.absolute()), *added]
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _end() -> None:
    """Ends a program that has run to its end: its threads and what it registered for its exit, and then the process."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, closed, or at a pipe that nobody reads
            stream.flush()
    os._exit(0)


if __name__ == "__main__":
    asked = _serve(int(sys.argv[1]), "kernel" in sys.argv[2:])
    if asked is not None:
        _become(asked)
        _end()
