"""Say in few lines how two traces of a workload differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tools.oracle.align import Hunk, hunks
from tools.oracle.trace import Event, Stage, Trace

MIB = 2**20
BLOCK_ACTIONS = ("alloc", "free_completed", "free_requested")


@dataclass(frozen=True)
class Comparison:
    """What the oracle did beside what the simulated GPU did."""

    expected: Trace
    actual: Trace

    def __post_init__(self) -> None:
        object.__setattr__(self, "hunks", list(hunks(self.expected.events, self.actual.events)))

    @property
    def missing(self) -> list[Event]:
        """Events of the oracle that the other side lacks."""
        return [event for hunk in self.hunks for event in self.expected.events[hunk.a : hunk.b]]

    @property
    def extra(self) -> list[Event]:
        """Events of the other side that the oracle lacks."""
        return [event for hunk in self.hunks for event in self.actual.events[hunk.c : hunk.d]]

    @property
    def peak_error(self) -> float:
        """How far the highest peak is off, as a fraction of the oracle's."""
        return self.actual.peak / self.expected.peak - 1 if self.expected.peak else 0.0

    @property
    def counters(self) -> list[tuple[str, str, int, int]]:
        """Counters that differ, as (stage, key, the oracle's, the other's)."""
        rows = []
        for ours, theirs in zip(self.expected.stages, self.actual.stages, strict=False):
            keys = sorted(ours.stats.keys() | theirs.stats.keys())
            pairs = ((key, ours.stats.get(key, 0), theirs.stats.get(key, 0)) for key in keys)
            rows += [(ours.name, *pair) for pair in pairs if pair[1] != pair[2]]
        return rows

    @property
    def equal(self) -> bool:
        """Whether events, stages, every counter at each and the error's text are the same."""
        names = [[stage.name for stage in trace.stages] for trace in (self.expected, self.actual)]
        return not self.hunks and names[0] == names[1] and not self.counters and self.expected.oom == self.actual.oom

    def verdict(self) -> str:
        """One line."""
        name, events = self.expected.workload, len(self.expected.events)
        if self.equal:
            return f"EQUAL    {name}: {events} events, all counters at {len(self.expected.stages)} stages"
        parts = []
        if self.hunks:
            parts.append(f"{len(self.missing)} missing and {len(self.extra)} extra of {events} events")
        else:
            parts.append(f"{events} events equal")
        parts.append(f"peak {self.peak_error:+.3%}" if self.peak_error else "peak equal")
        reserved = [max((s.reserved for s in t.stages), default=0) for t in (self.expected, self.actual)]
        parts.append("reserved equal" if reserved[0] == reserved[1] else f"reserved {_mib(*reserved)}")
        if self.counters:
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
        lines += [
            "",
            "  by operator (oracle only: missing; simulated only: extra)",
            *_by_operator(comparison, 2 * limit),
        ]
        lines += ["", f"  first differences of {len(comparison.hunks)}"]
        for hunk in comparison.hunks[:limit]:
            lines += _hunk(comparison, hunk, context)
    lines += ["", *_stages(comparison)]
    if not comparison.hunks and comparison.counters:
        lines += [
            "",
            "  counters",
            *(f"    {s}: {k} {e} → {a}" for s, k, e, a in comparison.counters[: 2 * limit]),
        ]
    if comparison.expected.oom != comparison.actual.oom:
        lines += [
            "",
            f"  oracle's error:    {comparison.expected.oom}",
            f"  simulated's error: {comparison.actual.oom}",
        ]
    return "\n".join(lines)


def _by_operator(comparison: Comparison, limit: int) -> Iterator[str]:
    """Differences counted by operator, most frequent first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for title, events in (("missing", comparison.missing), ("extra", comparison.extra)):
        for event in events:
            if event.action not in BLOCK_ACTIONS:
                continue  # segments follow from the rest
            operator = " ".join(filter(None, event.where.split("|")[:3])) or event.where.strip("|") or "?"
            groups.setdefault((title, event.action, operator), []).append(event.size)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (title, action, operator), sizes in ordered[:limit]:
        common = ", ".join(str(size) for size, _ in Counter(sizes).most_common(3))
        more = ", ..." if len(set(sizes)) > 3 else ""
        yield f"    {len(sizes):5} × {title:7} {action:14} {operator}: {common}{more}"
    if len(ordered) > limit:
        yield f"    and {len(ordered) - limit} more kinds"
    if not ordered:
        yield "    segments only"


def _hunk(comparison: Comparison, hunk: Hunk, context: int) -> Iterator[str]:
    expected, actual = comparison.expected.events, comparison.actual.events
    stage = _stage_before(comparison.expected, hunk.a)
    yield f"    at event {hunk.a} (simulated {hunk.c}), after stage {stage!r}"
    rows = [("", event) for event in expected[max(0, hunk.a - context) : hunk.a]]
    rows += [("oracle", event) for event in expected[hunk.a : hunk.b]]
    rows += [("simulated", event) for event in actual[hunk.c : hunk.d]]
    rows += [("", event) for event in expected[hunk.b : hunk.b + context]]
    most = 4 * context + 12
    for side, event in rows[:most]:
        yield f"      {side:9} {event.action:14} {event.size:>13}  {event.where}"
    if len(rows) > most:
        yield f"      ... {len(rows) - most} more"


def _stage_before(trace: Trace, at: int) -> str:
    return next((stage.name for stage in reversed(trace.stages) if stage.at <= at), "start")


def _stages(comparison: Comparison) -> Iterator[str]:
    """A line for each stage: allocated, peak since the stage before, reserved."""
    pairs = list(zip(comparison.expected.stages, comparison.actual.stages, strict=False))
    width = max((len(stage.name) for stage, _ in pairs), default=5)
    yield f"  {'stage':{width}}  {'allocated':>24} {'peak':>24} {'reserved':>18}   MiB, oracle[/simulated]"
    for ours, theirs in pairs:
        yield f"  {ours.name:{width}}  " + " ".join(
            f"{_mib(getattr(ours, key), getattr(theirs, key)):>{size}}"
            for key, size in (("allocated", 24), ("peak", 24), ("reserved", 18))
        )
    names: list[list[Stage]] = [comparison.expected.stages, comparison.actual.stages]
    if len(names[0]) != len(names[1]):
        yield f"  oracle stopped after {names[0][-1:]}, simulated after {names[1][-1:]}"


def _mib(expected: int, actual: int) -> str:
    text = f"{expected / MIB:.10g}"
    return text if expected == actual else f"{text}/{actual / MIB:.10g}"
