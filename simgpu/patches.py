"""Replaces attributes of modules for a while, and restores them exactly."""

import contextlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_ABSENT = object()
_FOLDER = Path(__file__).parent.parent
_records: list[list["Patch"]] = []  # of `recorded`, the innermost last


class Patch(NamedTuple):
    """One attribute that was replaced.

    `exists` says whether its owner had it, or inherited it, and `new` why it need not. `place` is the line that
    replaces it, as "simgpu/torch_patches/cuda.py:30".
    """

    owner: Any
    name: str
    exists: bool
    new: str
    place: str


class Patches:
    """Sets attributes with `apply`, and restores them in reverse order with `undo`."""

    def __init__(self):
        self._undo = []
        self._replaced = []

    def apply(self, owner, name: str, replacement, new: str = "") -> None:
        """Sets owner.name, and remembers what its own dictionary held, or that it held nothing.

        Raises AttributeError if the owner has no such attribute, unless `new` says why it need not have one. A
        replacement of a name that PyTorch does not have would never be called.
        """
        before = vars(owner).get(name, _ABSENT)
        if _records:
            _records[-1].append(Patch(owner, name, _has(owner, name), new, _place(sys._getframe(1))))
        elif before is _ABSENT and not new and not _has(owner, name):
            raise AttributeError(
                f"{named(owner)} has no attribute {name!r}, and {_place(sys._getframe(1))} replaces it: guard that for "
                "versions without it, or say in `new` why it need not exist"
            )
        self._undo.append((owner, name, before))
        if before is not _ABSENT:
            self._replaced.append((before, replacement))
        setattr(owner, name, replacement)

    def replaced(self) -> list[tuple]:
        """Returns pairs of what was replaced and its replacement, in order, of those in force."""
        return list(self._replaced)

    def when_undone(self, do) -> None:
        """Registers `do()` to be called in its turn by `undo`."""
        self._undo.append((do, None, None))

    def undo(self) -> None:
        """Restores everything, latest first."""
        self._replaced.clear()
        while self._undo:
            owner, name, before = self._undo.pop()
            if name is None:
                owner()
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@contextlib.contextmanager
def recorded() -> Iterator[list[Patch]]:
    """Yields a list of what is replaced inside the `with`, where a missing name is recorded and not an error."""
    found: list[Patch] = []
    _records.append(found)
    try:
        yield found
    finally:
        _records.pop()


def named(owner) -> str:
    """Returns the dotted name of a module or a class."""
    if inspect.isclass(owner):
        return f"{owner.__module__}.{owner.__qualname__}"
    return getattr(owner, "__name__", repr(owner))


def _has(owner, name: str) -> bool:
    """Returns whether an owner has an attribute or inherits it, without running code of a property."""
    return inspect.getattr_static(owner, name, _ABSENT) is not _ABSENT


def _place(frame) -> str:
    path = Path(frame.f_code.co_filename)
    shown = path.relative_to(_FOLDER) if path.is_relative_to(_FOLDER) else path
    return f"{shown.as_posix()}:{frame.f_lineno}"
