"""Calls functions when modules have been imported, so that a program's own imports and settings come first."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class AfterImport:
    """A finder for `sys.meta_path`: `then[name](module)` is called once, when a module has been imported.

    A program that only asks whether there is such a module (`importlib.util.find_spec`), or whose import fails, does
    not count as an import.
    """

    def __init__(self, then: Mapping[str, Callable[[ModuleType], None]]):
        self._then = dict(then)
        self._looking: set[str] = set()

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        """The spec of a module that is waited for, with a loader that calls its function; None for any other."""
        if name not in self._then or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module) -> None:
            del loader.exec_module
            execute(module)
            do = self._then.pop(name, None)
            if do is not None:
                do(sys.modules.get(name) or module)

        with contextlib.suppress(AttributeError):  # a loader whose attributes cannot be set
            loader.exec_module = exec_module
        return spec
