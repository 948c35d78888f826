"""Memory that grows with each step: what is alive after successive optimizer steps, compared by the line of origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

STEPS = 12
"""Steps that are compared, the first ones; the states of optimizers and caches have settled long before."""

EQUAL = 3
"""Steps in a row, the last ones, in which an origin must have added equally many blocks."""

MOST = 3
"""Origins that are named."""


@dataclass
class Grown:
    """What one line adds in each step: its origin, blocks and bytes per step, and what holds them ("" if unknown)."""

    origin: Any
    blocks: int
    nbytes: int
    holder: str = ""


@dataclass
class Growth:
    """Counts the blocks of each origin that are alive after each step."""

    _counts: list[Counter] = field(default_factory=list)

    def step(self, steps: int, live: Iterable) -> None:
        """Counts what is alive after step number `steps`."""
        if steps != len(self._counts) + 1 or steps > STEPS:
            return
        counts: Counter = Counter()
        for held in live:
            counts[held.origin, held.size] += 1
        self._counts.append(counts)

    def grown(self) -> list[Grown]:
        """Returns the lines that each of the last steps added equally many blocks to, largest first."""
        if len(self._counts) <= EQUAL:
            return []
        last = self._counts[-EQUAL - 1 :]
        grown = []
        for key in last[-1]:
            added = {after[key] - before[key] for before, after in pairwise(last)}
            if len(added) == 1 and (blocks := added.pop()) > 0:
                grown.append(Grown(key[0], blocks, blocks * key[1]))
        return sorted(grown, key=lambda one: -one.nbytes)[:MOST]
