"""Compares two runs: what has grown at the peak, by the line that allocated it.

A side is a folder that `simgpu run --out` wrote, its report.json, or a snapshot of PyTorch's
(torch.cuda.memory._dump_snapshot), of a real GPU or a simulated one.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from simgpu.allocator import snapshot
from simgpu.report import folder, stored
from simgpu.report.report import Report
from simgpu.report.sizes import mib, size
from simgpu.report.verdict import OUT_OF_MEMORY

SHOWN = 12
SNAPSHOT = "a snapshot"
"""What a side is called that names no GPU."""


@dataclass(frozen=True)
class Side:
    """The peak of one run: its bytes, what is known of where they come from, and what they do not include."""

    name: str
    gpu: str
    peak: int
    held: Counter
    unmodeled: str = ""
    report: Report | None = None

    def document(self) -> dict:
        """Returns it as plain data for JSON."""
        return {"name": self.name, "gpu": self.gpu, "peak": self.peak, "unmodeled": self.unmodeled}


def side_of(path: str | Path) -> Side:
    """One side of a comparison. ValueError for a file that is not there, or is neither a report nor a snapshot; OSError
    if it cannot be read."""
    place = Path(path)
    if not place.exists():
        raise ValueError(f"no file and no folder {str(path)!r}")
    if place.is_dir():
        if not (place / folder.REPORT).exists():
            raise ValueError(f"the folder {str(place)!r} holds no {folder.REPORT}: simgpu run --out writes one")
        place = place / folder.REPORT
    return _of_report(str(path), Report.load(place)) if place.suffix == ".json" else _of_snapshot(str(path), place)


def _of_report(name: str, report: Report) -> Side:
    held = Counter()
    for one in report.lines:
        held[_key(one.library or one.place, one.operator, one.part)] += one.nbytes
    return Side(name, f"simulated {report.gpu}", sum(held.values()), held, report.unmodeled, report)


class Key(NamedTuple):
    """Who holds memory: file and function ("train.py in forward"), operator and part where they are known, and line."""

    where: str
    operator: str
    part: str
    line: int

    def __str__(self) -> str:
        file, _, function = self.where.partition(" in ")
        return f"{file}:{self.line} in {function}" if function else f"{file}:{self.line}" if self.line else file


def _key(place: str, operator: str = "", part: str = "") -> Key:
    """`place` is like "train.py:64 in forward"."""
    found = re.search(r":(\d+)(?= in |$)", place)
    if found is None:
        return Key(place, operator, part, 0)
    return Key(place[: found.start()] + place[found.end() :], operator, part, int(found.group(1)))


def _of_snapshot(name: str, path: Path) -> Side:
    found = snapshot.read(path)
    traces = [trace for trace in found["device_traces"] if trace]
    if not traces:
        raise ValueError(f"{path} has no events: record them with torch.cuda.memory._record_memory_history()")
    peak, living = peak_of(found["segments"], traces[0])
    held = Counter()
    for nbytes, frames in living:
        held[_key(place_of(frames))] += nbytes
    return Side(name, SNAPSHOT, peak, held)


def peak_of(segments: Sequence[Mapping], trace: Sequence[Mapping]) -> tuple[int, list[tuple[int, Sequence[Mapping]]]]:
    """The most bytes that lived at once while a trace was recorded, and those blocks: (bytes asked for, frames)."""
    living = _before(segments, trace)
    total = top = sum(nbytes for nbytes, _ in living.values())
    at = 0
    for number, event in enumerate(trace, 1):
        total += _change(living, event)
        if total > top:
            top, at = total, number
    living = _before(segments, trace)
    for event in trace[:at]:
        _change(living, event)
    return top, list(living.values())


def _change(living: dict, event: Mapping) -> int:
    """Follows one event; how many bytes more live after it."""
    if event["action"] == "alloc":
        living[event["addr"]] = event["size"], event.get("frames", ())
        return event["size"]
    if event["action"] in ("free_requested", "free_completed"):
        gone = living.pop(event["addr"], None)
        return 0 if gone is None else -gone[0]
    return 0


def _before(segments: Sequence[Mapping], trace: Sequence[Mapping]) -> dict:
    """What lived when the recording began: what lives at the end, or was freed, and was never allocated."""
    living = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                nbytes = block.get("requested_size", block["size"])
                living[block.get("address")] = nbytes, block.get("frames", ())
    known: set = set()
    for event in trace:
        address = event.get("addr")
        if event["action"] == "alloc":
            known.add(address)
            living.pop(address, None)
        elif event["action"] == "free_completed" and address not in known:
            known.add(address)
            living[address] = event["size"], event.get("frames", ())
    return living


_OF_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]|\.(cpp|cu|h|hpp|c)$|^\?\?|^$|^<")
_OF_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3")


def place_of(frames: Sequence[Mapping]) -> str:
    """The innermost line of a stack that is Python and not PyTorch's: "model.py:7 in forward"."""
    for frame in frames:
        name = frame.get("filename", "")
        if not _OF_TORCH.search(name):
            inside = re.split(r"[/\\](?:site|dist)-packages[/\\]", name)[-1]
            short = inside if _OF_LIBRARIES.search(name) else re.split(r"[/\\]", name)[-1]
            name = frame.get("name", "")
            return f"{short}:{frame.get('line', 0)}" + (f" in {name}" if name and name != "<module>" else "")
    return "somewhere that the snapshot does not tell"


def _its_snapshot(path: str | Path) -> Side | None:
    """The side of the snapshot in a run's folder; None where there is none, or not of the whole run."""
    place = Path(path) / folder.SNAPSHOT
    if not place.exists():
        return None
    whole = all(len(trace) < folder.NEWEST for trace in snapshot.read(place)["device_traces"])
    return _of_snapshot(str(path), place) if whole else None


def _by_line(held: Counter) -> Counter:
    """Compares without operators and parts, which a snapshot does not contain."""
    lines = Counter()
    for key, nbytes in held.items():
        lines[key._replace(operator="", part="")] += nbytes
    return lines


def _paired(before: Counter, after: Counter) -> Iterator[tuple[Key | None, Key | None]]:
    """The lines of the two sides that are each other's. Of one function's lines that do the same, as many on both sides
    are paired in their order, since lines move when something is written above them; else those of the same number."""
    groups: dict[tuple, tuple[list, list]] = {}
    for at, held in enumerate((before, after)):
        for key in sorted(held):
            groups.setdefault(key[:3], ([], []))[at].append(key)
    for old, new in groups.values():
        if len(old) == len(new):
            yield from zip(old, new, strict=True)
        else:
            yield from ((key if key in old else None, key if key in new else None) for key in sorted({*old, *new}))


@dataclass(frozen=True)
class Difference:
    """What one run's peak has more or less than another's. `rows`: (bytes more, bytes before, bytes after, line,
    operator, part), those that changed most first."""

    before: Side
    after: Side
    rows: tuple[tuple[int, int, int, str, str, str], ...]

    @property
    def grown(self) -> int:
        """Bytes by which the peak has grown."""
        return self.after.peak - self.before.peak

    @classmethod
    def of(cls, before: str | Path, after: str | Path) -> "Difference":
        """The difference of two files or folders; raises what `side_of` raises."""
        one, other = side_of(before), side_of(after)
        if one.gpu != SNAPSHOT and other.gpu == SNAPSHOT:
            one = _its_snapshot(before) or one
        elif one.gpu == SNAPSHOT and other.gpu != SNAPSHOT:
            other = _its_snapshot(after) or other
        held, hold = one.held, other.held
        if (one.gpu == SNAPSHOT) != (other.gpu == SNAPSHOT):
            held, hold = _by_line(held), _by_line(hold)
        rows = []
        for old, new in _paired(held, hold):
            had, has = held[old] if old else 0, hold[new] if new else 0
            if had != has:
                key = new or old
                assert key is not None
                rows.append((has - had, had, has, str(key), key.operator, key.part))
        rows.sort(key=lambda row: (-abs(row[0]), row[3]))
        return cls(one, other, tuple(rows))

    def _times(self) -> list[str]:
        """Returns a sentence about the times of the two runs, with a verdict only if their ranges do not overlap."""
        before, after = (side.report and side.report.time for side in (self.before, self.after))
        if before is None or after is None:
            return []
        if before.differs(after):
            verdict = "longer" if after.seconds > before.seconds else "shorter"
            verdict = f"The run takes {verdict}, because the ranges do not overlap."
        else:
            verdict = "The ranges overlap, so which run is faster is not known."
        return ["", f"{self.before.name}: {before}.", f"{self.after.name}: {after}.", verdict]

    def document(self) -> dict:
        """Returns it as plain data for JSON (docs/report_json.md)."""
        names = ("more", "before", "after", "place", "operator", "part")
        return {
            "schema": stored.SCHEMA,
            "grown": self.grown,
            "before": self.before.document(),
            "after": self.after.document(),
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }

    def __str__(self) -> str:
        one, other = self.before, self.after
        gpus = one.gpu if one.gpu == other.gpu else f"{one.gpu}, and {other.gpu}"
        how = "the same as" if not self.grown else f"{size(abs(self.grown))} {'above' if self.grown > 0 else 'below'}"
        text = [f"The peak of {other.name} is {how} that of {one.name} ({gpus}):"]
        kinds = {side.gpu == SNAPSHOT for side in (one, other)}
        text.append(f"{one.peak:,} → {other.peak:,} B {'asked for' if kinds == {True} else 'allocated'}")
        if len(kinds) == 2:
            text.append("A snapshot tells the bytes asked for, a report those allocated, which are rounded up.")
        for side in (one, other):
            if side.report is not None and side.report.ending == OUT_OF_MEMORY:
                text.append(f"{side.name} ran out of memory, so it is compared at the moment when that happened.")
        if self.rows:
            text += ["", f"{'MiB more':>14}{'before':>14}{'after':>14}"]
        for more, had, has, where, operator, part in self.rows[:SHOWN]:
            what = ": ".join(filter(None, (part, operator)))
            line = f"{where}   {what}" if what else where
            text.append(f"{'+' if more > 0 else '-'}{mib(abs(more)):>13}{mib(had):>14}{mib(has):>14}  {line}")
        if len(self.rows) > SHOWN:
            rest = sum(row[0] for row in self.rows[SHOWN:])
            text.append(
                f"{'+' if rest >= 0 else '-'}{mib(abs(rest)):>13}{'':>28}  of {len(self.rows) - SHOWN} more lines"
            )
        text += self._times()
        for side in (one, other):
            if side.unmodeled:
                text.append(f"{side.name}: {side.unmodeled}")
        return "\n".join(text) + "\n"
