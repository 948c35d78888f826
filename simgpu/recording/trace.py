"""A workload's use of the caching allocator: events, counters at each stage and step times, in a small file."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1
# One letter for each action of `torch.cuda.memory._snapshot()`. A `free_requested` directly followed by its
# `free_completed` is omitted: both are one event unless another stream still uses the block.
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
LARGEST = 2**23
"""Most bytes of JSON in a trace: about 300,000 events, ten times the largest stored workload."""
COLUMNS = {
    "workload": str,
    "provenance": dict,
    "oom": (str, type(None)),
    "actions": str,
    "numbers": list,
    "where": list,
    "events_where": list,
    "counters": list,
    "stages": list,
}
ACTIONS = {letter: action for action, letter in LETTERS.items()}
OF_A_BLOCK = ("free_completed", "free_requested")


class Event(NamedTuple):
    """Describes one line of the allocator's history.

    `size` is in bytes: the requested size, or the size of a segment. `block` counts the allocations: the n-th `alloc`
    creates block n, and a free names the block it frees; it is -1 for other actions. `where` is
    "operator|function|autograd node|user's line", with possibly empty parts.
    """

    action: str
    size: int
    block: int
    where: str


@dataclass(frozen=True)
class Stage:
    """Describes a point of a workload at which the counters were read, `at` events after its start.

    `stats` is `torch.cuda.memory_stats()` there; its peaks are those since the previous stage. `nvml` is what
    nvidia-smi shows for the device in bytes, or None if it was not queried or is unavailable.
    """

    name: str
    at: int
    stats: Mapping[str, int]
    nvml: int | None = None

    @property
    def allocated(self) -> int:
        """Returns the bytes allocated at this point."""
        return self.stats.get("allocated_bytes.all.current", 0)

    @property
    def peak(self) -> int:
        """Returns the most bytes allocated since the previous stage."""
        return self.stats.get("allocated_bytes.all.peak", 0)

    @property
    def reserved(self) -> int:
        """Returns the bytes of all segments at this point."""
        return self.stats.get("reserved_bytes.all.current", 0)


@dataclass(frozen=True)
class Trace:
    """Holds the events and stages of one workload on one device.

    `oom` is the message of the error that ended it, or None. `idle` is NVML's figure in bytes before the workload's
    process used the device. `step_ms` are the milliseconds of each timed step after warm-up, by CUDA events, and empty
    if nothing was timed.
    """

    workload: str
    events: list[Event]
    stages: list[Stage]
    oom: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    idle: int | None = None
    step_ms: tuple[float, ...] = ()

    @property
    def peak(self) -> int:
        """Returns the most bytes allocated at any time."""
        return max((stage.peak for stage in self.stages), default=0)

    @property
    def median_ms(self) -> float | None:
        """Returns the median of the timed steps in milliseconds, or None if nothing was timed."""
        return statistics.median(self.step_ms) if self.step_ms else None

    def save(self, path: Path, *, replace: bool = True) -> None:
        """Writes this trace as gzipped JSON: columns rather than rows, and each different `where` once.

        The file appears under its name only when it is complete. Raises FileExistsError if it already exists and
        `replace` is false.
        """
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
        if self.idle is not None or any(stage.nvml is not None for stage in self.stages):
            columns |= {"idle": self.idle, "nvml": [stage.nvml for stage in self.stages]}
        if self.step_ms:
            columns["step_ms"] = self.step_ms
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(columns, separators=(",", ":"))
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            # without time and name in the header, the same trace gives the same file
            unfinished.write_bytes(gzip.compress(text.encode(), mtime=0))
            if replace:
                unfinished.replace(path)
            else:
                os.link(unfinished, path)  # unlike a rename, it fails if the file exists
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads what `save` wrote.

        Raises ValueError with the file and the reason if it is cut off, has another format, has more than LARGEST bytes
        of JSON, or is not a trace.
        """
        try:
            with gzip.open(path) as file:
                text = file.read(LARGEST + 1)
            if len(text) > LARGEST:
                raise ValueError(f"more than {LARGEST} B of JSON")
            columns = json.loads(text)
            if not isinstance(columns, dict):
                raise ValueError(f"a {type(columns).__name__}, wanted an object")
            if columns["format"] != FORMAT:
                raise ValueError(f"format {columns['format']!r}, wanted {FORMAT}")
            return cls._from_columns(columns)
        except FileNotFoundError:
            raise
        except EOFError as error:
            raise ValueError(f"{path} is not a whole trace: it ends too early") from error
        except (OSError, zlib.error, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is not a trace: {reason}") from error

    @classmethod
    def _from_columns(cls, columns: dict) -> Trace:
        """Returns the trace after checking the type of every column, so that a broken one fails here and not later."""
        for name, kind in COLUMNS.items():
            if not isinstance(columns[name], kind):
                raise ValueError(f"{name!r} is a {type(columns[name]).__name__}")
        nvml = columns.get("nvml", [None] * len(columns["stages"]))
        _whole_numbers("numbers", columns["numbers"])
        _whole_numbers("events_where", columns["events_where"], below=len(columns["where"]))
        _whole_numbers("idle and nvml", [n for n in (columns.get("idle"), *nvml) if n is not None])
        _of("where and counters", str, [*columns["where"], *columns["counters"]])
        _of("provenance", str, columns["provenance"])
        step_ms = tuple(columns.get("step_ms", ()))
        _of("step_ms", (int, float), step_ms)
        stages = [
            Stage(name, at, dict(zip(columns["counters"], values, strict=True)), used)
            for (name, at, values), used in zip(columns["stages"], nvml, strict=True)
        ]
        _of("names of stages", str, [stage.name for stage in stages])
        _whole_numbers("places of stages", [stage.at for stage in stages], below=len(columns["actions"]) + 1)
        for stage in stages:
            _of(f"counters of stage {stage.name!r}", int, stage.stats.values())
        events = list(_events(columns))
        return cls(
            columns["workload"], events, stages, columns["oom"], columns["provenance"], columns.get("idle"), step_ms
        )


def _events(columns: dict) -> Iterator[Event]:
    sizes: list[int] = []
    for letter, number, where in zip(columns["actions"], columns["numbers"], columns["events_where"], strict=True):
        action, size, block = ACTIONS[letter], number, -1
        if action == "alloc":
            block = len(sizes)
            sizes.append(number)
        elif action in OF_A_BLOCK:
            block = len(sizes) - 1 - number
            if block < 0:
                raise ValueError(f"a free of a block {number} allocations ago, after {len(sizes)}")
            size = sizes[block]
        yield Event(action, size, block, columns["where"][where])


def _of(name: str, kind: type | tuple[type, ...], values: Iterable) -> None:
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name}: {value!r:.40} is a {type(value).__name__}")


def _whole_numbers(name: str, values: Iterable, below: int = 2**63) -> None:
    """Raises ValueError unless all `values` are integers in [0, below)."""
    for value in values:
        if type(value) is not int or not 0 <= value < below:
            raise ValueError(f"{name}: {value!r:.40} is no whole number from 0 to {below - 1}")
