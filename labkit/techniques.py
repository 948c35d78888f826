"""Builds the summary table of the course: what each memory-saving technique saved, and what it cost, as measured.

A chapter ends with its rows, made from its own measurements::

    techniques.summary(techniques.Technique("accumulation 4 × 1", on="bert-large, batch 4", peak=(before, after), ...))

The executed notebook stores them, so :func:`collect` can read the whole table from there and no number is typed twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd

from labkit.gpu import current
from labkit.units import MIB, whole_bytes

MIME = "application/vnd.labkit.techniques+json"


@dataclass(frozen=True)
class Technique:
    """One row: a memory-saving technique on one workload.

    ``method`` and ``on`` name the technique and the workload. ``peak`` is the allocated peak without and with it, in
    bytes, and ``seconds`` a step's time without and with it (None if not timed). ``use`` says when to use it, and
    ``saves_nothing`` when it does not help. ``gpu`` is the one in use, with "simulated" if it is. Raises ``ValueError``
    for a peak or a time that is not two positive numbers.
    """

    method: str
    on: str
    peak: tuple[int, int]
    seconds: tuple[float, float] | None
    use: str
    saves_nothing: str
    gpu: str = field(default_factory=lambda: str(current()))

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", tuple(whole_bytes(size) for size in self.peak))
        object.__setattr__(self, "seconds", None if self.seconds is None else tuple(self.seconds))
        for name, unit in (("peak", "bytes"), ("seconds", "s")):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or min(pair) <= 0):
                raise ValueError(f"{self.method!r}: {name} is ({unit} without, {unit} with it), not {pair}")

    def row(self) -> dict[str, str]:
        """Returns the row as text: the peak in MiB, the time as a ratio."""
        before, after = self.peak
        slower = "no time" if self.seconds is None else f"× {self.seconds[1] / self.seconds[0]:.2f}"
        return {
            "method": self.method,
            "on": self.on,
            "allocated peak (MiB)": f"{before / MIB:.1f} → {after / MIB:.1f}",
            "memory": f"{100 * (after - before) / before:+.1f} %",
            "step time": slower,
            "use it when": self.use,
            "it saves nothing when": self.saves_nothing,
            "measured on": self.gpu,
        }


class Summary:
    """Rows of the summary table, as a notebook displays and stores them."""

    def __init__(self, rows: Iterable[Technique]):
        self.rows = tuple(rows)

    def table(self) -> pd.DataFrame:
        """Returns the rows as text, one method per row."""
        return pd.DataFrame([technique.row() for technique in self.rows]).set_index("method")

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        with pd.option_context("display.max_colwidth", None):
            shown = {"text/plain": repr(self.table()), "text/html": self.table()._repr_html_()}
        return {**shown, MIME: [asdict(technique) for technique in self.rows]}


def summary(*techniques: Technique) -> Summary:
    """Returns the rows of a chapter. Raises ``ValueError`` without any, or if two have the same method."""
    methods = [technique.method for technique in techniques]
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"wanted one or more techniques, each once; were given {methods or 'none'}")
    return Summary(techniques)


def collect(folder: str | Path) -> Summary:
    """Returns every row that the executed notebooks of a folder store, in the order of the chapters.

    Raises ``FileNotFoundError`` if the folder has no notebooks.
    """
    notebooks = sorted(Path(folder).glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(f"no notebooks in {folder}")
    rows = []
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                rows += [Technique(**row) for row in output.get("data", {}).get(MIME, [])]
    return Summary(rows)
