"""What the tests of the accuracy ladder find, kept in docs/exactness.json, which chapter 24 shows.

    pytest --exactness docs/exactness.json

writes it, from findings that the tests hand to the fixture `exactness`. In any other run the same tests are held to the
committed page: one that finds less than the page claims fails.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "exactness.json"
FORMAT = 1
RUNGS = {
    1: "allocator",
    2: "event streams",
    3: "peaks",
    4: "nvidia-smi scale",
    5: "out of memory",
    6: "stored outputs of the notebooks",
    7: "times",
}
ORACLE = "the oracle: PyTorch's CUDA host code under stub libraries, no GPU"


@dataclass(frozen=True)
class Finding:
    """One thing that a test compared.

    `rung`: its place on the ladder, a key of `RUNGS`. `result`: the line of the table it counts in, "workloads, H100".
    `against`: where the other side comes from. `item`: its name within the result. `of` things were compared, `equal`
    of them were, `unit` says what they are ("events"). `difference`: how the two sides differ, "" if they do not.
    `measures`: numbers worth keeping, by name; bytes, unless the name says otherwise.
    """

    rung: int
    result: str
    against: str
    unit: str
    item: str
    of: int
    equal: int
    difference: str = ""
    measures: Mapping[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rung not in RUNGS:
            raise ValueError(f"rung {self.rung!r} of {self.result!r}: wanted one of {list(RUNGS)}")
        if not 0 <= self.equal <= self.of or not self.of:
            raise ValueError(f"{self.result!r}, {self.item!r}: {self.equal} of {self.of} equal")
        if not self.difference and self.equal < self.of:
            raise ValueError(f"{self.result!r}, {self.item!r}: {self.equal} of {self.of}, and no difference is named")

    @property
    def claim(self) -> tuple[bool, float]:
        """How much is claimed: larger is more."""
        return not self.difference, self.equal / self.of


def load(path: Path = PAGE) -> list[Finding]:
    """Every finding of the page. Raises ValueError for a file of another format."""
    return [finding for result in _results(path) for finding in _findings(result)]


def save(findings: Iterable[Finding], path: Path, torch: str) -> None:
    """Write the results these findings make, with today's date; other results that the file has are kept as they are.

    `torch`: the version that the simulated GPU ran on.
    """
    today = datetime.date.today().isoformat()
    new: dict[str, dict] = {}
    for one in findings:
        head = {"rung": one.rung, "result": one.result, "against": one.against, "unit": one.unit}
        result = new.setdefault(one.result, {**head, "torch": torch, "date": today, "items": []})
        result["items"].append([one.item, one.of, one.equal, one.difference, dict(one.measures)])
    kept = {result["result"]: result for result in (_results(path) if path.exists() else [])}
    results = sorted((kept | new).values(), key=lambda result: (result["rung"], result["result"]))
    path.write_text(_text(results), encoding="utf-8")


def overclaim(page: Mapping[tuple[str, str], Finding], found: Finding) -> str | None:
    """What the page, findings by (result, item), claims beyond what was found; None if nothing."""
    claimed = page.get((found.result, found.item))
    if claimed is None or claimed.claim <= found.claim:
        return None
    return (
        f"docs/exactness.json claims {claimed.equal} of {claimed.of} {claimed.unit} of {found.item!r} in "
        f"{found.result!r}; this run gives {found.equal} of {found.of}. {found.difference}"
    )


def by_name(findings: Iterable[Finding]) -> dict[tuple[str, str], Finding]:
    """Findings by (result, item)."""
    return {(one.result, one.item): one for one in findings}


def as_property(finding: Finding) -> dict:
    """A finding as a property of a test's report, which has to be JSON."""
    return asdict(finding)


def _results(path: Path) -> list[dict]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise ValueError(f"{path.name}: format {content.get('format')!r}, wanted {FORMAT}")
    return content["results"]


def _findings(result: dict) -> Iterable[Finding]:
    head = [result[key] for key in ("rung", "result", "against", "unit")]
    return (Finding(*head, *item) for item in result["items"])


def _text(results: list[dict]) -> str:
    """JSON with an item a line, so that a change is a line too."""
    blocks = []
    for result in results:
        head = json.dumps({key: value for key, value in result.items() if key != "items"}, ensure_ascii=False)
        items = ",\n   ".join(json.dumps(item, ensure_ascii=False) for item in sorted(result["items"]))
        blocks.append(f'{head[:-1]}, "items": [\n   {items}]}}')
    joined = ",\n".join(blocks)
    return f'{{"format": {FORMAT}, "results": [\n{joined}\n]}}\n'
