"""Runs a script or a module as Python itself would: as `__main__`, with its arguments and its path."""

import builtins
import contextlib
import difflib
import importlib.util
import os
import signal
import sys
import threading
import types
from pathlib import Path

_TIMERS = (
    {
        signal.SIGALRM: signal.ITIMER_REAL,
        signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
        signal.SIGPROF: signal.ITIMER_PROF,
    }
    if hasattr(signal, "setitimer")
    else {}
)
"""The timer that sends each signal, where the system has timers."""


class ScriptError(ValueError):
    """There is no such script or module, or it is no Python. The message is one line."""


class StepsDone(SystemExit):
    """The optimizers have made as many steps as were asked for. A SystemExit, so that programs let it through, and a
    process that a program has started ends with status 0. `text` says what was reached."""

    def __init__(self, text: str = ""):
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Script:
    """A script (`path`), or a module (`module`), with its arguments. Raises ScriptError where there is none."""

    def __init__(self, path: str | None = None, arguments=(), module: str | None = None):
        self.arguments = [str(one) for one in arguments]
        self.module = module
        self.path = os.path.abspath(path) if path is not None else ""
        self.name = module if module is not None else str(path)
        if module is None:
            self._spec, self._code, self.folder = None, _read(str(path), self.path), os.path.dirname(self.path)
        else:
            self.folder = os.getcwd()
            self._spec = _found(module, self.folder)
            self.path = self._spec.origin or ""
            self._code = _code_of(self._spec)

    @contextlib.contextmanager
    def as_main(self):
        """Inside, `__main__`, sys.argv and sys.path are the script's; yields a function that runs it.

        Afterwards they are as before, and so are the handlers of signals, which launchers such as torchrun replace.
        """
        main = types.ModuleType("__main__")
        vars(main).update(
            __file__=self.path,
            __builtins__=builtins,
            __spec__=self._spec,
            __package__=self._spec.parent if self._spec else None,
            __loader__=self._spec.loader if self._spec else None,
            __cached__=None,
        )
        before = sys.argv, sys.path, sys.modules["__main__"]
        sys.argv = [self.path if self.module else self.name, *self.arguments]
        sys.path = [self.folder, *[one for one in sys.path if one not in ("", self.folder)]]
        sys.modules["__main__"] = main
        handlers = _handlers()
        try:
            yield lambda: exec(self._code, vars(main))  # pyright: ignore[reportArgumentType]
        finally:
            sys.argv, sys.path, sys.modules["__main__"] = before
            _put_back(handlers)


def _handlers() -> dict:
    """Returns the handler of each signal, or nothing outside the main thread, which alone may set one.

    A handler that C set is not contained, because Python cannot set it again.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if handler is not None}


def _put_back(handlers: dict) -> None:
    """Sets the handlers that have changed. A timer of the program stops first, because its signal may end a process."""
    for number, handler in handlers.items():
        if signal.getsignal(number) != handler:
            if number in _TIMERS and handler == signal.SIG_DFL:
                signal.setitimer(_TIMERS[number], 0)
            signal.signal(number, handler)


def _read(given: str, path: str):
    if os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
        if not os.path.exists(path):
            raise ScriptError(f"the folder {given!r} has no __main__.py to run")
    try:
        source = Path(path).read_bytes()
    except FileNotFoundError:
        near = difflib.get_close_matches(os.path.basename(given), _scripts_in(os.path.dirname(path)), n=1)
        raise ScriptError(f"no file {given!r}" + (f"; did you mean {near[0]!r}?" if near else "")) from None
    except OSError as error:
        raise ScriptError(f"{given!r} cannot be read: {error.strerror}") from None
    try:
        return compile(source, path, "exec")
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ScriptError(f"{given!r} is not valid Python{where}: {error.args[0]}") from None


def _scripts_in(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(".py")]
    except OSError:
        return []


def _found(module: str, folder: str):
    """The spec of a module, or of a package's `__main__`. ScriptError in the words of `python -m` where there is
    none; an error that a package raises while it is imported is raised as it is."""
    before = sys.path
    sys.path = [folder, *before]
    try:
        if module.startswith("."):
            raise ScriptError(f"-m wants the full name of a module, not the relative name {module!r}")
        spec = _spec_of(module)
        if spec is not None and spec.submodule_search_locations is not None:
            main = f"{module}.__main__"
            if _spec_of(main) is None:
                raise ScriptError(f"No module named {main}; {module!r} is a package and cannot be directly executed")
            spec = _spec_of(main)
    finally:
        sys.path = before
    if spec is None:
        own = f"; for the script, leave -m and write {module}" if module.endswith(".py") else ""
        raise ScriptError(f"No module named {module!r}, searched from {folder}{own}")
    if _code_of(spec) is None:
        raise ScriptError(f"No code object available for {module!r}: it is not written in Python")
    return spec


def _code_of(spec):
    """Returns the code of a module, or None if it is not written in Python. pytest's loader of plugins has no code."""
    if hasattr(spec.loader, "get_code"):
        return spec.loader.get_code(spec.name)
    return _read(spec.origin, spec.origin) if (spec.origin or "").endswith(".py") else None


def _spec_of(module: str):
    """The spec of a module, None where it or one of its packages does not exist."""
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            return None
        raise
    except (ValueError, AttributeError):
        return None
