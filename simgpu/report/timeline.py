"""Memory over a run: what is handed out and given back, and the highest points where there is too much of it."""

from array import array
from typing import Any

EVENTS = 100_000
"""Allocations and frees of which a timeline keeps every one; of a longer run it keeps the highest points."""


class Timeline:
    """`events`: how many there were. `log`: of the first EVENTS what was handed out, and again what was given back.

    `curve`: the highest allocated and reserved bytes of each few events, one after the other.
    """

    def __init__(self) -> None:
        self.events = 0
        self.log: list[Any] = []
        self.curve = array("q")
        self.stride = 1  # events of which each point of the curve is the highest
        self._top = self._topmost = 0

    def add(self, held: Any, allocated: int, reserved: int) -> None:
        """Adds an event: `held` was allocated or freed, after which `allocated` and `reserved` bytes are in use."""
        self.events += 1
        if len(self.log) < EVENTS:
            self.log.append(held)
        self._top = max(self._top, allocated)
        self._topmost = max(self._topmost, reserved)
        if self.events % self.stride == 0:
            self.curve.extend((self._top, self._topmost))
            self._top = self._topmost = 0
            if len(self.curve) >= 2 * EVENTS:
                self._thin_out()

    def points(self) -> list[tuple[int, int]]:
        """Returns the highest allocated and reserved bytes of each `stride` events, of which the last may be fewer."""
        pairs = list(zip(self.curve[0::2], self.curve[1::2], strict=True))
        return [*pairs, (self._top, self._topmost)] if self.events % self.stride else pairs

    def _thin_out(self) -> None:
        allocated, reserved = self.curve[0::2], self.curve[1::2]
        self.curve = array("q")
        for one, other, *pair in zip(allocated[0::2], allocated[1::2], reserved[0::2], reserved[1::2], strict=True):
            self.curve.extend((max(one, other), max(pair)))
        self.stride *= 2
