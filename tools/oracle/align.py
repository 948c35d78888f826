"""Lay two event streams side by side and find where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from tools.oracle.trace import Event

WINDOW = 400  # events looked at on each side of a difference
SURE = 12  # equal events in a row after which the streams run together again


class Hunk(NamedTuple):
    """Where the streams differ: `expected[a:b]` on one side, `actual[c:d]` on the other; one may be empty."""

    a: int
    b: int
    c: int
    d: int


def hunks(expected: Sequence[Event], actual: Sequence[Event]) -> Iterator[Hunk]:
    """The differences between two streams, in order, comparing (action, size).

    `difflib` finds them within windows, moved on past each run of `SURE` equal events: its time grows with
    the square of a sequence's length and with the number of repeats, and a training step is long and repeats
    itself.
    """
    left = [(event.action, event.size) for event in expected]
    right = [(event.action, event.size) for event in actual]
    i = j = 0
    while True:
        while i < len(left) and j < len(right) and left[i] == right[j]:
            i, j = i + 1, j + 1
        if i == len(left) or j == len(right):
            break
        window = WINDOW
        matcher = SequenceMatcher(None, left[i : i + window], right[j : j + window], autojunk=False)
        blocks = matcher.get_matching_blocks()
        at_end = i + window >= len(left) and j + window >= len(right)
        # up to the first long run; without one, half a window on
        for a, b, size in blocks:
            if size >= SURE and (a or b):
                stop = (a, b)
                break
        else:
            stop = (len(left) - i, len(right) - j) if at_end else _half(blocks)
        yield from _between(blocks, stop, i, j)
        i, j = i + stop[0], j + stop[1]
    if i < len(left) or j < len(right):
        yield Hunk(i, len(left), j, len(right))


def _half(blocks) -> tuple[int, int]:
    """The end of the last matching block that begins in the first half of a window, or half a window on."""
    early = [(a + size, b + size) for a, b, size in blocks if size and a < WINDOW // 2 and b < WINDOW // 2]
    return early[-1] if early else (WINDOW // 2, WINDOW // 2)


def _between(blocks, stop: tuple[int, int], i: int, j: int) -> Iterator[Hunk]:
    """The gaps between matching blocks, up to `stop`, in the streams' own numbering."""
    a = b = 0
    for start_a, start_b, size in blocks:
        start_a, start_b = min(start_a, stop[0]), min(start_b, stop[1])
        if start_a > a or start_b > b:
            yield Hunk(i + a, i + start_a, j + b, j + start_b)
        a, b = start_a + size, start_b + size
        if a >= stop[0] or b >= stop[1]:
            a, b = max(a, stop[0]), max(b, stop[1])
            break
    if a < stop[0] or b < stop[1]:
        yield Hunk(i + a, i + stop[0], j + b, j + stop[1])
