"""Pairs of published times of the same work done in two ways, and whether the clock has the faster of the two."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simgpu.clock.estimates import Factor
from tools.times.fitted import Compared
from tools.times.published import Row

EXACTNESS = Path(__file__).parents[2] / "docs" / "exactness.json"
WAYS = {
    "eager or compiled": ("mode",),
    "8 or 128 GPUs": ("gpus", "parallelism", "global_batch"),
    "attention from separate operators or fused": ("attention",),
    "float32 or float16": ("precision",),
}
"""Ways of doing the same work, with the fields in which the rows of a pair may differ."""
APART = 0.05
"""Share by which the published speeds of a pair must differ at least."""
BERT, GPT, MINI = (
    "bert-large, 512 samples, V100: ",
    "GPT-2 large, 1024 samples, H100: ",
    "gpt-mini, 10240 samples, H100: ",
)
NANO = "nanoGPT, an iteration, A100: "
OTHERS = (
    ("without or with checkpointing", BERT, "accumulation 4 × 1", "accumulation and checkpointing"),
    ("without or with checkpointing", GPT, "accumulation × 2", "and checkpointing"),
    ("optimizer with foreach or a loop", GPT, "and checkpointing", "and for-loop optimizer"),
    ("eager or compiled", MINI, "and non_blocking", "and torch.compile"),
    ("eager or compiled", NANO, "eager", "compiled"),
)
"""Pairs among the published times of docs/exactness.json, which are in neither half."""


@dataclass(frozen=True)
class Pair:
    """Holds how many times faster the second of two ways is, as published and on the clock.

    apart: whether the ranges of the two estimates do not overlap, so that a page would print which is faster; None if
    there are no estimates.
    """

    way: str
    what: str
    published: float
    clock: float
    apart: bool | None = None

    @property
    def right(self) -> bool:
        """Returns whether the clock has the faster of the two."""
        return (self.published > 1) == (self.clock > 1)


def pairs(compared: Iterable[Compared], known: Sequence[Factor]) -> list[Pair]:
    """Returns the pairs of rows that differ in one way only, and whose published speeds differ by more than `APART`."""
    rows = list(compared)
    found = (pair for way, fields in WAYS.items() for pair in _of_way(rows, way, fields, known))
    return [pair for pair in found if _matters(pair)]


def _of_way(rows: list[Compared], way: str, fields: tuple[str, ...], known: Sequence[Factor]) -> Iterator[Pair]:
    groups: dict[tuple, list[Compared]] = defaultdict(list)
    for one in rows:
        names = [field.name for field in dataclasses.fields(Row) if field.name not in ("figure", "note", *fields)]
        groups[tuple(getattr(one.row, name) for name in names)].append(one)
    for group in groups.values():
        for first, second in pairwise(group):
            row = first.row
            changed = " → ".join(str(getattr(one.row, fields[0])) for one in (first, second))
            what = f"{row.source}, {row.model}, {row.work}, {row.gpus} × {row.gpu}, batch {row.batch}"
            (_, low, high), (_, other_low, other_high) = (one.times(known) for one in (first, second))
            yield Pair(
                way,
                f"{what}: {changed}",
                _samples(second) / second.real / (_samples(first) / first.real),
                _samples(second) / second.reading.seconds / (_samples(first) / first.reading.seconds),
                high < other_low or other_high < low,
            )


def _samples(one: Compared) -> int:
    """Returns the samples of one GPU in a step."""
    return (one.row.batch or 1) * (one.row.accumulation or 1)


def _matters(pair: Pair) -> bool:
    return abs(math.log(pair.published)) > math.log1p(APART)


def others() -> list[Pair]:
    """Returns the pairs of docs/exactness.json."""
    results = json.loads(EXACTNESS.read_text(encoding="utf-8"))["results"]
    items = next(one["items"] for one in results if one["result"] == "published times")
    times = {item[0]: item[-1] for item in items}
    found = []
    for way, program, first, second in OTHERS:
        before, after = times[program + first], times[program + second]
        ratios = (before[name] / after[name] for name in ("published (s)", "simulated (s)"))
        found.append(Pair(way, f"{program}{first} → {second}", *ratios))
    return [pair for pair in found if _matters(pair)]
