"""Replacing attributes of modules for a while, and putting back exactly what was there."""

_ABSENT = object()


class Patches:
    """A list of (object, attribute name, replacement), applied by `apply` and undone by `undo` in reverse."""

    def __init__(self):
        self._undo = []
        self._replaced = []

    def apply(self, owner, name: str, replacement) -> None:
        """Sets owner.name, remembering what its own dictionary held, or that it held nothing."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, before))
        if before is not _ABSENT:
            self._replaced.append((before, replacement))
        setattr(owner, name, replacement)

    def replaced(self) -> list[tuple]:
        """What was replaced and by what, in order, for as long as it is."""
        return list(self._replaced)

    def when_undone(self, do) -> None:
        """Calls `do()` in its turn when everything is put back."""
        self._undo.append((do, None, None))

    def undo(self) -> None:
        """Puts everything back, latest first."""
        self._replaced.clear()
        while self._undo:
            owner, name, before = self._undo.pop()
            if name is None:
                owner()
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
