"""The report in a notebook: the verdict, the timeline, and what the peak is made of."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.report import html
from simgpu.report.sizes import mib

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

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        """Returns the figure as HTML, and a still of it as PNG for viewers that run no scripts, such as GitHub's.

        The still's metadata have its alternative text, title and axes.
        """
        shown = {"text/html": self._repr_html_(), "text/plain": repr(self)}
        with contextlib.suppress(ImportError):  # without matplotlib there is no still
            shown |= self._still()
        about = {"alt": self.description, "title": "Memory over the run", "axes": ["allocations and frees", "MiB"]}
        return shown, {"image/png": about}

    @property
    def description(self) -> str:
        """Returns what the figure shows, in words."""
        report, track = self.report, self.report.timeline
        if track is None or report.at is None:
            return "No GPU memory was used."
        parts = [f"{name} {mib(nbytes)} MiB" for name, nbytes in report.parts.items() if "cache" not in name]
        return (
            f"Memory over {track.events:,} allocations and frees on a simulated {report.gpu}. "
            f"Allocated memory peaks at {mib(report.peak)} MiB in {report.at.stage}: {', '.join(parts)}."
        )

    def _repr_html_(self) -> str:
        return framed(self.report) or "<p>No GPU memory was used.</p>"

    def _still(self) -> dict[str, bytes]:
        if self.report.timeline is None:
            return {}
        from simgpu.report.picture import draw

        written = io.BytesIO()
        draw(self.report, written)
        return {"image/png": written.getvalue()}

    def __repr__(self) -> str:
        track = self.report.timeline
        return f"<the timeline of {track.events:,} allocations and frees>" if track else "<an empty timeline>"

    def save(self, path: str | Path) -> None:
        """Writes the figure as an HTML file. Raises ValueError if the file exists and is not such a figure."""
        html.save(html.figure(self.report), Path(path))
