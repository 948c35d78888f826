"""What the oracle said of each operator, a few bytes a sample, and what became of it: tests/data/oracle_op_info.

The tests replay the simulated side against it, without an oracle.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tools.oracle import run
from tools.oracle.op_info import jobs, judge, runs

FOLDER = run.ROOT / "tests" / "data" / "oracle_op_info"
FORMAT = 1


class Stored(NamedTuple):
    """An operator in a pass: whether with backward, its verdict, the first difference or the reason, and the digests of
    the oracle's samples by number (without those that are set apart)."""

    backward: bool
    verdict: str
    what: str
    digests: dict[int, str]


def path_of(gpu: str) -> Path:
    """The file of a GPU."""
    return FOLDER / f"{gpu}.json.gz"


def keep(rows: Iterable, gpu: str, version: str) -> None:
    """Store these rows (`command.Row`) over what is stored of the same operators in the same passes."""
    known = load(gpu) if path_of(gpu).exists() else {}
    for row in rows:
        answers = {one["number"]: one for one in runs.kept(row.job.part, gpu, version)[row.job.name].get("samples", ())}
        digests = {one.number: judge.digest(answers[one.number]) for one in row.outcomes if one.verdict != "apart"}
        what = row.worst.what if row.worst is not None else "no samples"
        known.setdefault(row.job.part, {})[row.job.name] = Stored(row.backward, row.verdict, what, digests)
    content = {
        "format": FORMAT,
        "made by": "PyTorch's CUDA host code under stub libraries; no GPU was involved",
        "torch": version,
        "gpu": gpu,
        "parts": {part: {name: _packed(of[name]) for name in sorted(of)} for part, of in sorted(known.items())},
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    path_of(gpu).write_bytes(gzip.compress(text.encode(), mtime=0))


def _packed(stored: Stored) -> list:
    numbers = sorted(stored.digests)
    digests = "".join(stored.digests[number] for number in numbers)
    if numbers == list(range(len(numbers))):
        numbers = len(numbers)
    return [int(stored.backward), stored.verdict, stored.what, numbers, digests]


def load(gpu: str) -> dict[str, dict[str, Stored]]:
    """What is stored of a GPU, by pass and name. Raises ValueError for a file of another format."""
    content = json.loads(gzip.decompress(path_of(gpu).read_bytes()))
    if content["format"] != FORMAT:
        raise ValueError(f"{path_of(gpu)}: format {content['format']}, wanted {FORMAT}")
    return {part: {name: _unpacked(*row) for name, row in of.items()} for part, of in content["parts"].items()}


def torch_of(gpu: str) -> str:
    """The torch that the oracle was, of which a GPU's digests are."""
    return json.loads(gzip.decompress(path_of(gpu).read_bytes()))["torch"]


def _unpacked(backward: int, verdict: str, what: str, numbers: int | list[int], digests: str) -> Stored:
    numbers = range(numbers) if isinstance(numbers, int) else numbers
    return Stored(
        bool(backward), verdict, what, {number: digests[8 * i : 8 * i + 8] for i, number in enumerate(numbers)}
    )


def replay(gpu: str, wanted: Mapping[str, Iterable[str]], most: int | None = None) -> dict[str, dict[str, str]]:
    """Run the simulated side of these operators of passes, all in one process: of each "equal", or what is not.

    `wanted`: the operators' names by pass. `most`: so many samples of each.
    """
    stored = load(gpu)
    chosen = [(part, name) for part, names in wanted.items() for name in names if stored[part][name].digests]
    asked = [
        [jobs.of_part(part, name), stored[part][name].backward, list(stored[part][name].digests)[:most]]
        for part, name in chosen
    ]
    found = runs.simulated(asked, gpu)
    replayed = {part: {} for part in wanted}
    for (part, name), (job, _, numbers) in zip(chosen, asked, strict=True):
        replayed[part][name] = _compared(stored[part][name], numbers, found.get(job))
    return replayed


def _compared(stored: Stored, numbers: list[int], found: dict | None) -> str:
    samples = {one["number"]: one for one in (found or {}).get("samples", ())}
    for number in numbers:
        if number not in samples:
            return f"sample {number}: {(found or {}).get('crash', 'absent')}"
        if judge.digest(samples[number]) != stored.digests[number]:
            return f"sample {number}: {samples[number].get('error') or samples[number].get('events')}"
    return "equal"
