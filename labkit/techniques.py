"""The summary table of the course: what each technique saves, what it costs, and where this was measured.

A chapter ends with its rows, made from its own measurements::

    techniques.summary(techniques.Technique("accumulation 4 × 1", on="bert-large, batch 4", peak=(before, after), ...))

The executed notebook stores them, so :func:`collect` finds the whole table there and no figure is typed twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd

from labkit.gpu import current
from labkit.units import MiB, whole_bytes

__all__ = ["Technique", "summary"]

MOST_COLUMNS = 5  # of a table in a notebook
MIME = "application/vnd.labkit.techniques+json"


@dataclass(frozen=True)
class Technique:
    """Describe one technique on one workload, as a row of the table.

    ``method`` and ``on`` name the technique and the workload. ``peak`` is the allocated peak of the whole step without
    and with it, in bytes, and ``backward`` that of forward and backward alone, or None where only one peak was
    measured. ``seconds`` is a step's time without and with it, or None. ``use`` says when to use the technique and
    ``saves_nothing`` when it does not help. ``gpu`` is the one in use, "simulated" included. Raises ``ValueError`` for
    a peak or a time that is not two positive numbers, and for a peak of backward above that of the step.
    """

    method: str
    on: str
    peak: tuple[int, int]
    seconds: tuple[float, float] | None
    use: str
    saves_nothing: str
    gpu: str = field(default_factory=lambda: str(current()))
    backward: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", tuple(whole_bytes(size) for size in self.peak))
        if self.backward is not None:
            object.__setattr__(self, "backward", tuple(whole_bytes(size) for size in self.backward))
        object.__setattr__(self, "seconds", None if self.seconds is None else tuple(self.seconds))
        for name, unit in (("peak", "bytes"), ("backward", "bytes"), ("seconds", "s")):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or min(pair) <= 0):
                raise ValueError(f"{self.method!r}: {name} is ({unit} without, {unit} with it), not {pair}")
        if self.backward is not None and any(
            part > whole for part, whole in zip(self.backward, self.peak, strict=True)
        ):
            raise ValueError(f"{self.method!r}: backward peaks at {self.backward}, above the whole step's {self.peak}")

    def row(self) -> dict[str, str]:
        """Return the row as text, with peaks in MiB and the time as a ratio."""
        before, after = self.peak
        slower = "not measured" if self.seconds is None else f"× {self.seconds[1] / self.seconds[0]:.2f}"
        return {
            "method": self.method,
            "on": self.on,
            "peak of backward (MiB)": _peaks(self.backward) if self.backward else "not separate",
            "peak of the step (MiB)": _peaks(self.peak),
            "memory": f"{100 * (after - before) / before:+.1f} %",
            "step time": slower,
            "use it when": self.use,
            "it saves nothing when": self.saves_nothing,
            "measured on": self.gpu,
        }


def _peaks(sizes: tuple[int, int]) -> str:
    """Return the peak without and with the technique in MiB, without decimals above 100."""
    return " → ".join(f"{size / MiB:,.{0 if size >= 100 * MiB else 1}f}" for size in sizes)


def _line(technique: Technique) -> str:
    """Return the measurements of a row as one line of text."""
    row = technique.row()
    backward = f"backward {row['peak of backward (MiB)']} MiB, " if technique.backward else ""
    return f"{row['method']}: {backward}step {row['peak of the step (MiB)']} MiB, step time {row['step time']}"


class Summary:
    """Rows of the summary table, as a notebook shows and stores them."""

    def __init__(self, rows: Iterable[Technique]):
        self.rows = tuple(rows)

    def table(self) -> pd.DataFrame:
        """Return the rows as text, one per method."""
        return pd.DataFrame([technique.row() for technique in self.rows]).set_index("method")

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        table = self.table() if len(self.rows) > MOST_COLUMNS else self.table().T  # a column per method fits a page
        with pd.option_context("display.max_colwidth", None):
            shown = {"text/plain": "\n".join(map(_line, self.rows)), "text/html": table._repr_html_()}
        return {**shown, MIME: [asdict(technique) for technique in self.rows]}


def summary(*techniques: Technique) -> Summary:
    """Return the rows of a chapter. Raises ``ValueError`` without any, or if two have the same method."""
    methods = [technique.method for technique in techniques]
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"wanted one or more techniques, each once; were given {methods or 'none'}")
    return Summary(techniques)


def collect(folder: str | Path) -> Summary:
    """Return every row that the executed notebooks of a folder store, in the order of the chapters.

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
