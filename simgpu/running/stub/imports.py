"""Calls functions when modules have been imported, so that a program's own imports and settings come first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class AfterImport:
    """A finder for `sys.meta_path`: `then[name](module)` is called once a module has been imported."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]):
        self._then = dict(then)

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        """The spec of a module that is waited for, with a loader that calls its function; None for any other."""
        do = self._then.pop(name, None)
        if do is None:
            return None
        spec = find_spec(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module) -> None:
            del loader.exec_module
            execute(module)
            do(sys.modules.get(name) or module)

        loader.exec_module = exec_module
        return spec
