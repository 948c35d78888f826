"""Replaces attributes of modules for a while, and restores exactly what was there."""

_ABSENT = object()


class Patches:
    """Sets attributes with `apply`, and restores them in reverse order with `undo`."""

    def __init__(self):
        self._undo = []

    def apply(self, owner, name: str, replacement) -> None:
        """Sets owner.name, and remembers what its own dictionary held, or that it held nothing."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, replacement)

    def when_undone(self, do) -> None:
        """Registers `do()` to be called in its turn by `undo`."""
        self._undo.append((do, None, None))

    def undo(self) -> None:
        """Restores everything, latest first."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if name is None:
                owner()
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
