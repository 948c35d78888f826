"""What a workload did to the caching allocator: events, counters at each stage and step times, in a small file."""

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
LARGEST = 2**23
"""Bytes of JSON that a trace may be: some 300,000 events, ten times what is stored of any workload."""
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

    `stats` is `torch.cuda.memory_stats()` there; its peaks are those since the stage before. `nvml` is what
    nvidia-smi shows for the device, bytes; None where it was not asked or cannot tell.
    """

    name: str
    at: int
    stats: Mapping[str, int]
    nvml: int | None = None

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
    """The events and stages of one workload on one device.

    `oom` is the text of the error that ended it, if one did. `idle` is NVML's figure before the workload's process had
    touched the device, bytes. `step_ms` are the milliseconds of each timed step, after warm-up, by CUDA events; empty
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
        """Most bytes allocated at any time."""
        return max((stage.peak for stage in self.stages), default=0)

    @property
    def median_ms(self) -> float | None:
        """The median of the timed steps, milliseconds; None if nothing was timed."""
        return statistics.median(self.step_ms) if self.step_ms else None

    def save(self, path: Path, *, replace: bool = True) -> None:
        """Write this trace as gzipped JSON: columns rather than rows, each different `where` once.

        It appears under its name only when it is whole. Raises FileExistsError if it is there already and `replace` is
        false.
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
            # no time and no name in the header: the same trace is the same file
            unfinished.write_bytes(gzip.compress(text.encode(), mtime=0))
            if replace:
                unfinished.replace(path)
            else:
                os.link(unfinished, path)  # unlike a rename, it fails where there is one
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what `save` wrote. ValueError, naming the file and what is wrong, for one that is cut off, of another
        format, larger than LARGEST bytes of JSON, or no trace at all."""
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
        """The trace, once every column is found to be of its type: a broken one is not to fail later."""
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
    """ValueError unless all `values` are integers from 0 up to and without `below`."""
    for value in values:
        if type(value) is not int or not 0 <= value < below:
            raise ValueError(f"{name}: {value!r:.40} is no whole number from 0 to {below - 1}")
