"""What a workload did to the caching allocator: events, and counters at each stage, in a small file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

FORMAT = 1
# One letter for each action of `torch.cuda.memory._snapshot()`. A `free_requested` that its `free_completed`
# follows at once is left out: both are one event unless another stream still uses the block.
LETTERS = {
    "alloc": "a",
    "free_completed": "f",
    "free_requested": "q",
    "segment_alloc": "S",
    "segment_free": "F",
    "segment_map": "M",
    "segment_unmap": "U",
    "oom": "x",
}
ACTIONS = {letter: action for action, letter in LETTERS.items()}
OF_A_BLOCK = ("free_completed", "free_requested")


class Event(NamedTuple):
    """One line of the allocator's history. `size` is in bytes: requested ones, of a segment those of the
    segment.

    `block` counts the allocations: the n-th `alloc` makes block n, and a free names the block it frees; -1
    for the others. `where` is "operator|function|autograd node|user's line", each part possibly empty.
    """

    action: str
    size: int
    block: int
    where: str


@dataclass(frozen=True)
class Stage:
    """A point of a workload at which the counters were read, `at` events after its start.

    `stats` is `torch.cuda.memory_stats()` there; its peaks are those since the stage before.
    """

    name: str
    at: int
    stats: Mapping[str, int]

    @property
    def allocated(self) -> int:
        """Bytes allocated at this point."""
        return self.stats.get("allocated_bytes.all.current", 0)

    @property
    def peak(self) -> int:
        """Most bytes allocated since the stage before."""
        return self.stats.get("allocated_bytes.all.peak", 0)

    @property
    def reserved(self) -> int:
        """Bytes of all segments at this point."""
        return self.stats.get("reserved_bytes.all.current", 0)


@dataclass(frozen=True)
class Trace:
    """The events and stages of one workload on one device."""

    workload: str
    events: list[Event]
    stages: list[Stage]
    oom: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """Most bytes allocated at any time."""
        return max((stage.peak for stage in self.stages), default=0)

    def save(self, path: Path) -> None:
        """Write this trace as gzipped JSON: columns rather than rows, each different `where` once."""
        wheres = {where: i for i, where in enumerate(dict.fromkeys(event.where for event in self.events))}
        numbers, made = [], 0
        for event in self.events:
            made += event.action == "alloc"
            numbers.append(made - 1 - event.block if event.action in OF_A_BLOCK else event.size)
        keys = sorted({key for stage in self.stages for key in stage.stats})
        columns = {
            "format": FORMAT,
            "workload": self.workload,
            "provenance": dict(self.provenance),
            "oom": self.oom,
            "actions": "".join(LETTERS[event.action] for event in self.events),
            "numbers": numbers,
            "where": list(wheres),
            "events_where": [wheres[event.where] for event in self.events],
            "counters": keys,
            "stages": [[s.name, s.at, [s.stats.get(key, 0) for key in keys]] for s in self.stages],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(columns, separators=(",", ":"))
        # no time and no name in the header: the same trace is the same file
        path.write_bytes(gzip.compress(text.encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what `save` wrote. Raises ValueError for a file that is something else, or of another format."""
        try:
            columns = json.loads(gzip.decompress(Path(path).read_bytes()))
            if columns["format"] != FORMAT:
                raise ValueError(f"{path}: format {columns['format']}, wanted {FORMAT}")
            return cls._from_columns(columns)
        except (OSError, EOFError, KeyError, TypeError, json.JSONDecodeError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ValueError(f"{path} is not a trace of the oracle: {error}") from error

    @classmethod
    def _from_columns(cls, columns: dict) -> Trace:
        sizes: list[int] = []
        events = []
        for letter, number, where in zip(columns["actions"], columns["numbers"], columns["events_where"], strict=True):
            action, size, block = ACTIONS[letter], number, -1
            if action == "alloc":
                block = len(sizes)
                sizes.append(number)
            elif action in OF_A_BLOCK:
                block = len(sizes) - 1 - number
                size = sizes[block]
            events.append(Event(action, size, block, columns["where"][where]))
        stages = [
            Stage(name, at, dict(zip(columns["counters"], values, strict=True)))
            for name, at, values in columns["stages"]
        ]
        return cls(columns["workload"], events, stages, columns["oom"], columns["provenance"])
