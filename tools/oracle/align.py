"""Lay two event streams side by side and find where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simgpu.recording.trace import Event

SURE = 24  # equal events in a row after which the streams run together again
MOST = 300  # missing and extra events in one stretch, beyond which the best match so far is taken


class Hunk(NamedTuple):
    """Where the streams differ: `expected[a:b]` on one side, `actual[c:d]` on the other; one may be empty."""

    a: int
    b: int
    c: int
    d: int


def hunks(expected: Sequence[Event], actual: Sequence[Event]) -> Iterator[Hunk]:
    """The differences between two streams, in order, comparing (action, size).

    From each difference on, E. Myers' algorithm (An O(ND) difference algorithm, 1986) finds the way to the next `SURE`
    equal events, or to the end, that has the fewest missing and extra events. `difflib` looks for the longest equal
    stretch instead, and in a training step, where every layer is like the last, that may be one layer off.
    """
    left = [(event.action, event.size) for event in expected]
    right = [(event.action, event.size) for event in actual]
    i = j = 0
    while True:
        while i < len(left) and j < len(right) and left[i] == right[j]:
            i, j = i + 1, j + 1
        if (i, j) == (len(left), len(right)):
            return
        for begin, end in _equal_runs(left, right, i, j):
            if begin != (i, j):
                yield Hunk(i, begin[0], j, begin[1])
            i, j = end


def _equal_runs(left: list, right: list, i: int, j: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The equal runs (begin, end) on the shortest way from (i, j) to `SURE` equal events or to both ends.

    The last one, possibly of no events, ends where the way does.
    """
    n, m = len(left) - i, len(right) - j
    furthest = {1: 0}  # of each diagonal k = x - y, counted from (i, j), the largest x reached
    history = []
    for edits in range(MOST):
        history.append(dict(furthest))
        reached = {}
        for k in range(-edits, edits + 1, 2):
            edit = _edit(furthest, k, n, m)
            if edit is None:
                continue
            x = begin = edit[1]
            while x < n and x - k < m and left[i + x] == right[j + x - k]:
                x += 1
            reached[k] = x
            if x - begin >= SURE or (x, x - k) == (n, m):
                return _trace_back(history, k, x, (n, m), (i, j))
        furthest = reached
    k = max(furthest, key=lambda k: 2 * furthest[k] - k)
    return _trace_back(history, k, furthest[k], (n, m), (i, j))


def _edit(furthest: dict[int, int], k: int, n: int, m: int) -> tuple[int, int] | None:
    """The diagonal from which `k` is best reached with one more edit, and the x at which it is; None if from none."""
    below, above = furthest.get(k - 1, n), furthest.get(k + 1, -1)
    options = [(below + 1, k - 1)] if below < n else []
    options += [(above, k + 1)] if 0 <= above <= m + k else []
    return max(options)[::-1] if options else None


def _trace_back(history: list[dict[int, int]], k: int, x: int, ends: tuple[int, int], offset: tuple[int, int]):
    """The equal runs of the way that ends at `x` on diagonal `k` after the last of `history`'s steps."""
    i, j = offset
    runs = []
    for furthest in reversed(history):
        before, begin = _edit(furthest, k, *ends)
        if x > begin or not runs:
            runs.append(((i + begin, j + begin - k), (i + x, j + x - k)))
        k, x = before, furthest[before]
    return runs[::-1]
