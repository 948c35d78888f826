"""Say in few lines how two traces of a workload differ."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import groupby

from simgpu.recording.trace import LETTERS, Event, Trace
from tools.oracle.align import Hunk, hunks

MIB = 2**20
OF_BLOCKS = ("alloc", "free_requested", "free_completed", "oom")
OF_THE_ORDER = re.compile(r"inactive_split.*\.(peak|allocated|freed)$")  # how often free blocks were joined on the way
END_OF_AUTOCAST = re.compile(r"clear_autocast_cache|autocast_mode\.py:\d+ __exit__")
NEARBY = 100  # events within which a missing and an extra one of the same size are one that came at another time


def freed_in_any_order(event: Event) -> bool:
    """Whether it frees one of the casts that autocast kept, at the end of its region.

    PyTorch keeps them in a hash map by address (`cached_casts` in aten/src/ATen/autocast_mode.cpp): the order in which
    they go differs from one run of the oracle to the next.
    """
    return event.action == "free_completed" and bool(END_OF_AUTOCAST.search(event.where))


def unordered_runs(events: list[Event]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of two or more events that come in any order."""
    end = 0
    for any_order, run in groupby(events, freed_in_any_order):
        begin, end = end, end + len(list(run))
        if any_order and end - begin > 1:
            yield begin, end


def without_order(found: list[Hunk], expected: list[Event], actual: list[Event]) -> list[Hunk]:
    """The hunks, but for those that only put frees that come in any order into another order."""
    kept = list(found)
    for a, b in unordered_runs(expected):
        inside = [hunk for hunk in kept if a <= hunk.a and hunk.b <= b]
        if inside:
            c, d = a + inside[0].c - inside[0].a, b + inside[-1].d - inside[-1].b
            if Counter(map(_key, expected[a:b])) == Counter(map(_key, actual[c:d])):
                kept = [hunk for hunk in kept if hunk not in inside]
    return kept


def _key(event: Event) -> tuple[str, int]:
    return event.action, event.size


class Comparison:
    """What the oracle did (`expected`) beside what the simulated GPU did (`actual`).

    Only the events of blocks are aligned: segments follow from them, and are looked at where all else is equal.
    """

    def __init__(self, expected: Trace, actual: Trace) -> None:
        self.expected, self.actual = expected, actual
        for actions in (OF_BLOCKS, LETTERS):
            self.places = [i for i, event in enumerate(expected.events) if event.action in actions]
            self.expected_events = [expected.events[i] for i in self.places]
            self.actual_events = [event for event in actual.events if event.action in actions]
            found = list(hunks(self.expected_events, self.actual_events))
            self.hunks: list[Hunk] = without_order(found, self.expected_events, self.actual_events)
            if self.hunks:
                break

    @cached_property
    def missing(self) -> list[Event]:
        """Events of the oracle that the simulated GPU lacks, or has at another time."""
        return [event for hunk in self.hunks for event in self.expected_events[hunk.a : hunk.b]]

    @cached_property
    def extra(self) -> list[Event]:
        """Events of the simulated GPU that the oracle lacks, or has at another time."""
        return [event for hunk in self.hunks for event in self.actual_events[hunk.c : hunk.d]]

    @cached_property
    def differences(self) -> list[tuple[str, Event]]:
        """("missing" | "extra" | "moved", event) for each; an event that only came at another time is there once."""
        waiting: dict[tuple[str, int], list[list]] = defaultdict(list)
        entries: list[list] = []
        for hunk in self.hunks:
            sides = (("missing", self.expected_events[hunk.a : hunk.b]), ("extra", self.actual_events[hunk.c : hunk.d]))
            for kind, events in sides:
                for event in events:
                    queue = waiting[event.action, event.size]
                    if queue and queue[0][0] != kind and hunk.a - queue[0][2] <= NEARBY:
                        queue.pop(0)[0] = "moved"
                        continue
                    if queue and queue[0][0] != kind:
                        queue.clear()
                    queue.append([kind, event, hunk.a])
                    entries.append(queue[-1])
        return [(kind, event) for kind, event, _ in entries]

    @property
    def peak_error(self) -> float:
        """How far the highest peak is off, as a fraction of the oracle's."""
        return self.actual.peak / self.expected.peak - 1 if self.expected.peak else 0.0

    @cached_property
    def counters(self) -> list[tuple[str, str, int, int]]:
        """Counters that differ, as (stage, key, the oracle's, the simulated GPU's)."""
        rows, unordered = [], list(unordered_runs(self.expected.events))
        for ours, theirs in zip(self.expected.stages, self.actual.stages, strict=False):
            keys = sorted(ours.stats.keys() | theirs.stats.keys())
            if any(begin < ours.at for begin, _ in unordered):
                keys = [key for key in keys if not OF_THE_ORDER.match(key)]
            pairs = ((key, ours.stats.get(key, 0), theirs.stats.get(key, 0)) for key in keys)
            rows += [(ours.name, *pair) for pair in pairs if pair[1] != pair[2]]
        return rows

    @property
    def equal(self) -> bool:
        """Whether events, stages, every counter at each and the error's text are the same."""
        names = [[stage.name for stage in trace.stages] for trace in (self.expected, self.actual)]
        return not self.hunks and names[0] == names[1] and not self.counters and self.expected.oom == self.actual.oom

    def first(self) -> str:
        """What the first difference is, without sizes: "missing alloc native_layer_norm_backward native::clone"."""
        if self.differences:
            kind, event = self.differences[0]
            return f"{kind} {event.action.removesuffix('_completed')} {_origin(event)}"
        if self.counters:
            return f"counter {self.counters[0][1]}"
        return "stages or the error's text"

    def verdict(self) -> str:
        """One line."""
        name, events = self.expected.workload, len(self.expected.events)
        if self.equal:
            any_order = sum(end - begin for begin, end in unordered_runs(self.expected.events))
            but = f", but for the order of {any_order} frees at the end of autocast" if any_order else ""
            return f"EQUAL    {name}: {events} events, all counters at {len(self.expected.stages)} stages{but}"
        parts = []
        if self.hunks:
            kinds = Counter(kind for kind, _ in self.differences)
            parts.append(f"{', '.join(f'{n} {kind}' for kind, n in kinds.items())} of {events} events")
        else:
            parts.append(f"{events} events equal")
        parts.append(f"peak {self.peak_error:+.3%}" if self.peak_error else "peak equal")
        reserved = [max((stage.reserved for stage in t.stages), default=0) for t in (self.expected, self.actual)]
        parts.append("reserved equal" if reserved[0] == reserved[1] else f"reserved {_mib(*reserved)} MiB")
        if self.counters and not self.hunks:
            parts.append(f"{len(self.counters)} counters differ")
        if self.expected.oom != self.actual.oom:
            parts.append("OOM text differs")
        return f"DIFFERS  {name}: {', '.join(parts)}"


def report(comparison: Comparison, context: int = 2, limit: int = 5) -> str:
    """The verdict, the differences by operator, the first `limit` with `context` events around, the stages."""
    if comparison.equal:
        return comparison.verdict()
    lines = [comparison.verdict()]
    if comparison.hunks:
        lines += by_operator(comparison.differences, 3 * limit)
        for hunk in comparison.hunks[:limit]:
            lines += _hunk(comparison, hunk, context)
        if len(comparison.hunks) > limit:
            lines.append(f"    and {len(comparison.hunks) - limit} more places")
    elif comparison.counters:
        rows = comparison.counters[: 2 * limit]
        lines += [f"    counter {key} at {stage}: {ours} there, {theirs} here" for stage, key, ours, theirs in rows]
        lines += _other_blocks(comparison, limit)
    lines += _stages(comparison)
    if comparison.expected.oom != comparison.actual.oom:
        lines += [
            f"    oracle's error:    {comparison.expected.oom}",
            f"    simulated's error: {comparison.actual.oom}",
        ]
    return "\n".join(lines)


def _other_blocks(comparison: Comparison, limit: int) -> Iterator[str]:
    """Where events are equal in kind and size, and yet another block was freed: the first such places."""
    made = [
        {event.block: event.where for event in trace.events if event.action == "alloc"}
        for trace in (comparison.expected, comparison.actual)
    ]
    pairs = zip(comparison.expected_events, comparison.actual_events, strict=False)
    places = [(at, ours, theirs) for at, (ours, theirs) in enumerate(pairs) if ours.block != theirs.block]
    for at, ours, theirs in places[:limit]:
        yield f"    event {at} frees {ours.size:,} bytes, but another block   {ours.where}"
        yield f"      oracle     number {ours.block}, made by {made[0].get(ours.block)}"
        yield f"      simulated  number {theirs.block}, made by {made[1].get(theirs.block)}"


def by_operator(differences: Iterable[tuple[str, Event]], limit: int) -> Iterator[str]:
    """Differences counted by kind, action, operator, function and autograd node; most frequent first."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for kind, event in differences:
        groups[kind, event.action, _origin(event)].append(event.size)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (kind, action, operator), sizes in ordered[:limit]:
        common = ", ".join(f"{size:,}" + (f" ×{n}" if n > 1 else "") for size, n in Counter(sizes).most_common(3))
        more = ", ..." if len(set(sizes)) > 3 else ""
        yield f"    {len(sizes):4} {kind:7} {action.removesuffix('_completed'):5} {operator}: {common}{more}"
    if len(ordered) > limit:
        yield f"    and {len(ordered) - limit} more kinds of difference"


def _origin(event: Event) -> str:
    *origin, line = event.where.split("|")
    return " ".join(filter(None, origin)) or line


def _hunk(comparison: Comparison, hunk: Hunk, context: int) -> Iterator[str]:
    """One place where the streams differ: ">" only the oracle has, "<" only the simulated GPU."""
    expected, actual = comparison.expected_events, comparison.actual_events
    yield f"  at event {hunk.a}, {_when(comparison, hunk.a)}   (> oracle only, < simulated only)"
    rows = [(" ", event) for event in expected[max(0, hunk.a - context) : hunk.a]]
    rows += [(">", event) for event in expected[hunk.a : hunk.b]]
    rows += [("<", event) for event in actual[hunk.c : hunk.d]]
    rows += [(" ", event) for event in expected[hunk.b : hunk.b + context]]
    most = 4 * context + 12
    for side, event in rows[:most]:
        yield f"    {side} {event.action.removesuffix('_completed'):5} {event.size:>13}  {event.where}"
    if len(rows) > most:
        yield f"      ... {len(rows) - most} more"


def _when(comparison: Comparison, at: int) -> str:
    """Between which stages the `at`-th aligned event of the oracle lies."""
    place = comparison.places[at] if at < len(comparison.places) else len(comparison.expected.events)
    stage = next((stage.name for stage in comparison.expected.stages if stage.at > place), "the end")
    return f"before {stage!r}"


def _stages(comparison: Comparison) -> Iterator[str]:
    """Of the stages whose figures differ: allocated, peak since the stage before, reserved."""
    pairs = list(zip(comparison.expected.stages, comparison.actual.stages, strict=False))
    keys = ("allocated", "peak", "reserved")
    rows = [
        f"    {ours.name:18} " + "  ".join(f"{_mib(getattr(ours, key), getattr(theirs, key)):>26}" for key in keys)
        for ours, theirs in pairs
        if any(getattr(ours, key) != getattr(theirs, key) for key in keys)
    ]
    if rows:
        yield f"    {'MiB, oracle|simulated':18} " + "  ".join(
            f"{key:>{26 if i else 23}}" for i, key in enumerate(keys)
        )
        yield from rows
    equal = len(pairs) - len(rows)
    yield f"    allocated, peak and reserved are equal at {equal} of {len(comparison.expected.stages)} stages"
    if len(comparison.expected.stages) != len(comparison.actual.stages):
        yield f"    stages: oracle {len(comparison.expected.stages)}, simulated {len(comparison.actual.stages)}"


def _mib(expected: int, actual: int) -> str:
    text = f"{expected / MIB:.10g}"
    return text if expected == actual else f"{text}|{actual / MIB:.10g}"
