"""docs/times.md, from the published rows and the clock's times in docs/times.json."""

import json
from pathlib import Path

from tools.times.rows import Row

DOCS = Path(__file__).parents[2] / "docs"
FILE, PAGE = DOCS / "times.json", DOCS / "times.md"


def stored() -> dict[str, float]:
    """The clock's seconds of a step, by a row's name."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def error(row: Row, found: dict[str, float]) -> float:
    """How far the clock is from the published time: 0.1 is 10 % too long."""
    return found[row.name] / row.seconds - 1


def page() -> str:
    """Its text."""
    return "to be written\n"
