"""Figures published elsewhere, each with its provenance, and the table that compares measurements with them.

The figures are in labkit/published.yaml. They are stored as the printed text, because its digits show the precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from labkit.gpu import current
from labkit.units import MiB, mib, verdict

__all__ = ["course_file", "elsewhere", "find", "source", "table", "values"]


@dataclass(frozen=True)
class Figure:
    """One published figure of memory, in MiB as printed; an empty field means that the source does not say."""

    mib: str
    experiment: str = ""
    quantity: str = ""
    source: str = ""
    gpu: str = ""
    torch: str = ""
    note: str = ""

    def short(self) -> str:
        """Returns the figure as printed, with at most three decimals."""
        return self.mib if len(self.mib.partition(".")[2]) <= 3 else str(round(Decimal(self.mib), 3))

    def verdict(self, measured: int) -> str:
        """Returns ``"equal"``, ``"equal to N decimals"`` (those printed), or the difference of ``measured`` bytes."""
        exact = Fraction(self.mib) * MiB
        if measured == exact:
            return "equal"
        decimals = len(self.mib.partition(".")[2])
        if abs(measured - exact) * 10**decimals < MiB:  # rounded or truncated in the publication
            return f"equal to {decimals} decimals"
        return verdict(measured, round(exact))


@cache
def _read() -> dict[str, Any]:
    """Returns the file of figures."""
    return yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))


def _figures() -> Iterator[tuple[str, str, Figure]]:
    """Yields each figure with the names of its experiment and its source."""
    for name, experiment in _read()["experiments"].items():
        for group in experiment["figures"]:
            where = {key: group.get(key, "") for key in ("gpu", "torch", "note")}
            for quantity, size in group["mib"].items():
                yield (
                    name,
                    group["source"],
                    Figure(size, experiment["name"], quantity, source(group["source"]), **where),
                )


def source(name: str) -> str:
    """Returns the title of a source, by its name in labkit/published.yaml. Raises ``KeyError`` for any other."""
    return _read()["sources"][name]


def values(name: str) -> Any:
    """Returns published figures that are not sizes in MiB, as labkit/published.yaml has them, which also explains them.

    Raises ``KeyError`` for a name that is not there.
    """
    return _read()["values"][name]


def find(experiment: str, quantity: str, source: str = "", gpu: str = "") -> Figure:
    """Returns the one figure that matches; ``source`` and ``gpu`` narrow the choice.

    ``experiment`` and ``source`` are names of labkit/published.yaml ("three-linear", "notes"). Raises ``LookupError``,
    with the figures of that experiment, if none or several match.
    """
    there = [(named, figure) for name, named, figure in _figures() if name == experiment]
    match = [
        figure
        for named, figure in there
        if figure.quantity == quantity and source in ("", named) and gpu in ("", figure.gpu)
    ]
    if len(match) == 1:
        return match[0]
    known = "\n".join(f"  {f.quantity}: {f.mib} MiB, {f.gpu or 'GPU not said'}, {named}" for named, f in there)
    raise LookupError(
        f"{len(match)} figures match {quantity!r} of {experiment!r}, one was wanted; there are\n"
        + (known or f"  experiments {', '.join(map(repr, _read()['experiments']))}")
    )


def table(experiment: str = "") -> pd.DataFrame:
    """Returns a table of every figure of an experiment, or of all, with its provenance."""
    rows = [
        {
            "experiment": figure.experiment,
            "quantity": figure.quantity,
            "published (MiB)": figure.short(),
            "GPU": figure.gpu or "not said",
            "torch": figure.torch or "not said",
            "source": figure.source,
            "note": figure.note,
        }
        for name, _, figure in _figures()
        if experiment in ("", name)
    ]
    return pd.DataFrame(rows)


def elsewhere(rows: Iterable[tuple[Figure, int, str]], gpu: str = "") -> pd.DataFrame:
    """Returns a table of published figures with those found here, a row per ``(figure, bytes here, why they differ)``.

    Its heading names the GPU on which the bytes were simulated or measured: ``gpu``, or the one in use by default.
    """
    frame = pd.DataFrame(
        [
            {
                "quantity": figure.quantity,
                "published (MiB)": figure.short(),
                "here": mib(here),
                "here - published": figure.verdict(here),
                "why": why,
                "source": figure.source,
            }
            for figure, here, why in rows
        ]
    ).set_index("quantity")
    frame.index.name = frame.attrs["gpu"] = gpu or str(current())
    return frame


def course_file(name: str) -> Path:
    """Returns the path of a file or folder of the course; `name` is relative to its root ("notebooks/data/alice.txt").

    It searches the clone that contains labkit, the clone around the current folder, and the files installed with the
    package simgpu (`share/simgpu`, see pyproject.toml). Raises FileNotFoundError, which says what to do, if none of
    them has the file.
    """
    here = Path.cwd()
    clones = (folder for folder in (Path(__file__).parents[1], here, *here.parents) if (folder / "course.py").is_file())
    for found in (*(folder / name for folder in clones), *_installed(name)):
        if found.exists():
            return found
    raise FileNotFoundError(
        f"this cell reads {name} of the course's folder, which is not installed with the package: "
        "run the notebook in a clone of the course"
    )


def _installed(name: str) -> list[Path]:
    try:
        files = metadata.files("simgpu") or []
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(one.locate())) for one in files if one.as_posix().endswith(f"share/simgpu/{name}")]
