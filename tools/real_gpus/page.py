"""Writes docs/real_gpus.md from docs/real_gpus.json: peaks of real GPUs, and those of the stub engine."""

from __future__ import annotations

import json
from pathlib import Path

from simgpu.report.sizes import MIB

DOCS = Path(__file__).parents[2] / "docs"
FILE, PAGE = DOCS / "real_gpus.json", DOCS / "real_gpus.md"
NEAR = 10
"""MiB by which a peak may differ from the published ones and is still counted as near."""

HEADINGS = (
    "record",
    "real GPUs",
    "torch of the log",
    "logs",
    "published, MiB",
    "here, MiB",
    "off",
    "torch here",
)

HEAD = """\
# Compared with real GPUs

Others have published the peak memory of programs on real GPUs, together with the code. This page runs that code on the
[stub engine](engines.md), which is PyTorch's own CUDA build on libraries that execute nothing, and puts both figures
next to each other. No GPU was used for the figures of this project.

{summary}

*Here* is the lower bound, in which asynchronous work ends at once. A second figure is the upper bound, in which it ends
when the host next waits for the GPU ([engines.md](engines.md)).

`python -m tools.real_gpus` writes this page from [real_gpus.json](real_gpus.json). To run a record again and store its
figures, use `python -m tools.real_gpus run CHECKOUT RECORD` ([tools/real_gpus](../tools/real_gpus/records.py)).
CHECKOUT is a folder with a checkout of the repository that the logs come from.
"""
SOURCE = """\
## {name}

Source: [{name}]({url}), {licence}, commit `{commit}`; figures only. {about}

{counts}

*Off* is how many MiB the allocated peak, or the nearer of the two bounds, is away from that of the nearest log.
{printed}

{table}
"""
EXPLANATIONS = """\
## Where the figures differ

{differences}
"""
NOT_RUN = """\
## What has no figures

| record | torch of the log | published, MiB | why |
|---|---|---|---|
{rows}
"""


def stored() -> dict:
    """The content of docs/real_gpus.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def store(content: dict) -> None:
    """Writes docs/real_gpus.json."""
    FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def off(row: dict) -> int:
    """How many MiB a peak here is below (negative) or above all published ones; 0 inside their range.

    Where the upper bound was measured too, the nearer of the two bounds counts.
    """
    low, high = row["published"]["allocated"]
    return min((min(here - low, 0) + max(here - high, 0) for here in _peaks(row, "allocated")), key=abs)


def _peaks(row: dict, name: str) -> list[int]:
    """Returns MiB allocated or reserved here, as the program printed them, or else of the whole run.

    The list has the lower bound, and the upper one where it was measured.
    """
    found = []
    for bound in (row[key] for key in ("here", "upper") if key in row):
        of_the_run = (bound["allocated"] // MIB, bound["reserved"] // MIB)
        printed = bound.get("printed", of_the_run)[name == "reserved"]
        found.append(of_the_run[name == "reserved"] if printed is None else printed)
    return found


def page() -> str:
    """The page."""
    found = stored()
    rows = found["rows"]
    measured = [row for row in rows if "here" in row]
    near = [row for row in measured if abs(off(row)) <= NEAR]
    late = [row for row in near if abs(off({key: row[key] for key in row if key != "upper"})) > NEAR]
    summary = (
        f"{len(measured)} programs ran to their end, and in {len(near)} of them the allocated peak is at most {NEAR}\n"
        "MiB away from what the real GPUs printed (as MiB, rounded down), or inside the range of several logs.\n"
        + f"In {len(late)} of these it is the upper bound that is near, and the lower one is not.\n"
        * bool(late)
        + "Most logs name nightly builds of PyTorch, which are not available any more. Here the programs run on\n"
        "releases, so the comparison also contains what has changed in between. The records are not a random sample.\n"
        "Those on torch 2.13 were chosen after an earlier trial had found them near, and the others because a release\n"
        "close to the torch of their log was at hand. Records that use other features may be further off."
    )
    parts = [HEAD.format(summary=summary)]
    for name, source in found["sources"].items():
        of_source = [row for row in rows if row["source"] == name]
        with_figures = [row for row in of_source if "here" in row]
        table = _table(with_figures)
        said = {"table": table, "counts": _counts(source, of_source), "printed": _printed(with_figures)}
        parts.append(SOURCE.format(name=name, **said, **source))
    if differences := [f"- **{_short(row)}**: {row['why']}" for row in measured if row.get("why")]:
        parts.append(EXPLANATIONS.format(differences="\n".join(differences)))
    if missing := [row for row in rows if "here" not in row]:
        parts.append(NOT_RUN.format(rows="\n".join(map(_without_figures, missing))))
    return "\n".join(parts)


def _counts(source: dict, rows: list[dict]) -> str:
    """Says how many records there are, why some cannot be run, and how many of the others were run."""
    run = [row for row in rows if "here" in row]
    tried = [row for row in rows if "here" not in row and ("failed" in row or "why" in row)]
    near = [row for row in run if abs(off(row)) <= NEAR]
    lacking = "\n".join(f"- {number}: {why};" for why, number in source["lacking"].items())
    return (
        f"Its tracks 1 and 2 have {source['records']} records:\n\n{lacking}\n"
        f"- {len(rows)}: can be run. {len(run)} of them ran to their end, {len(tried)} failed here, and "
        f"{len(rows) - len(run) - len(tried)} were not tried.\n\n"
        f"Of the {len(run)} that ran, {len(near)} are at most {NEAR} MiB off."
    )


def _printed(rows: list[dict]) -> str:
    """Says for how many records the peak is what the program printed here, and not that of the whole run."""
    number = sum("printed" in row["here"] for row in rows)
    return (
        f"Of {number} records the peak is the one that the program printed here, because programs may reset PyTorch's\n"
        "counters after their warm-up. Of the others it is that of the whole run."
    )


def _without_figures(row: dict) -> str:
    why = f"on torch {row['tried']}: {row['failed']}" if "failed" in row else "not tried"
    cells = [_short(row), row["published"]["torch"], _range(row["published"]["allocated"]), row.get("why", why)]
    return "| " + " | ".join(cells) + " |"


def _table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for row in rows:
        real, here = row["published"], row["here"]
        cells = [
            _short(row),
            real["cards"],
            real["torch"],
            str(real["logs"]),
            f"{_range(real['allocated'])} / {_range(real['reserved'])}",
            " / ".join(_bounds(row, name) for name in ("allocated", "reserved")),
            f"{off(row):+,}" if off(row) else "0",
            here["torch"] + (f", `{row['settings']}`" if "settings" in row else ""),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _bounds(row: dict, name: str) -> str:
    """Formats the MiB allocated or reserved here, and the upper bound where it was measured and differs."""
    return " to ".join(dict.fromkeys(f"{one:,}" for one in _peaks(row, name)))


def _range(bounds: list[int] | None) -> str:
    if bounds is None:
        return "not printed"
    low, high = bounds
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _short(row: dict) -> str:
    track, _, name = row["record"].rpartition("/")
    return name + (" (medium)" if "medium" in track else "")
