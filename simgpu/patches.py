"""Replaces attributes of modules for a while, and restores them exactly."""

_ABSENT = object()


class Patches:
    """Sets attributes with `apply`, and restores them in reverse order with `undo`."""

    def __init__(self):
        self._undo = []
        self._replaced = []

    def apply(self, owner, name: str, replacement) -> None:
        """Sets owner.name, and remembers what its own dictionary held, or that it held nothing."""
        before = vars(owner).get(name, _ABSENT)
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
