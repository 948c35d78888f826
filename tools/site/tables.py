"""The tables of a page in Markdown, read and written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence


def read(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Each table of the page: the heading it stands under, and its rows as cells by the name of their column."""
    title, lines = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
            continue
        if lines:
            names, _, *rows = lines
            yield title, [dict(zip(names, row, strict=True)) for row in rows]
            lines = []
        if line.startswith("#"):
            title = line.lstrip("# ")


def find(text: str, title: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading. Raises ValueError if there is none."""
    for found, rows in read(text):
        if found == title:
            return rows
    raise ValueError(f"no table under the heading {title!r}; there are {[found for found, _ in read(text)]}")


def write(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def number(text: str) -> float:
    """A cell's number: "+132.1 %", "-47.0 %", "× 1.05", "22,591"."""
    found = re.search(r"[-+−]?\d[\d,]*\.?\d*", text)
    if found is None:
        raise ValueError(f"no number in {text!r}")
    return float(found[0].replace(",", "").replace("−", "-"))
