"""The report in a notebook: the verdict, the timeline, and what the peak is made of."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.report import html

if TYPE_CHECKING:
    from simgpu.report.report import Report


HEIGHT = 560
"""Pixels of the frame with the timeline."""


def in_notebook(report: Report) -> str:
    """Returns the verdict, the timeline and the table of parts as HTML for a notebook."""
    return f"<div>{html.headline(report)}{framed(report)}{html.parts_table(report)}</div>"


def framed(report: Report) -> str:
    """Returns the timeline in a frame of its own, which a notebook's style does not reach; "" if there is none."""
    if report.timeline is None:
        return ""
    inside = escape(html.figure(report))
    style = f"width:100%;height:{HEIGHT}px;border:0"
    return f'<iframe title="Memory over the run" sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>'


@dataclass(frozen=True)
class Figure:
    """The timeline of a report. A notebook shows it, and `save` writes it as an HTML file."""

    report: Report

    def _repr_html_(self) -> str:
        return framed(self.report) or "<p>No GPU memory was used.</p>"

    def __repr__(self) -> str:
        track = self.report.timeline
        return f"<the timeline of {track.events:,} allocations and frees>" if track else "<an empty timeline>"

    def save(self, path: str | Path) -> None:
        """Writes the figure as an HTML file. Raises ValueError if the file exists and is not such a figure."""
        html.save(html.figure(self.report), Path(path))
