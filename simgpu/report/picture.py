"""A picture of memory over a run: what it is made of after each event, or, of a long run, its highest points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from simgpu.report.owners import (
    ACTIVATIONS,
    DATA,
    GATHERED,
    GRADIENTS,
    GRAPHS,
    KV_CACHE,
    PARAMETERS,
    REDUCED,
    STATES,
    TEMPORARIES,
    WORKSPACES,
)
from simgpu.report.sizes import MIB
from simgpu.report.track import Track

if TYPE_CHECKING:
    from simgpu.report.report import Report


# Okabe and Ito's palette, whose colours differ for any kind of colour vision. Those of FSDP are of Tol's muted one.
COLOURS = {
    PARAMETERS: "#0072B2",
    GATHERED: "#882255",
    STATES: "#CC79A7",
    GRADIENTS: "#009E73",
    REDUCED: "#DDCC77",
    KV_CACHE: "#332288",
    DATA: "#56B4E9",
    WORKSPACES: "#999999",
    ACTIVATIONS: "#E69F00",
    TEMPORARIES: "#F0E442",
    GRAPHS: "#000000",
}


def draw(report: Report, file: Path | BinaryIO) -> None:
    """Writes the picture as a PNG to a path or an open file. The report has a timeline."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    track = report.timeline
    assert track is not None
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if track.points:
        points = np.array(track.allocated()) / MIB
        axes.fill_between(range(len(points)), points, color="#56B4E9", alpha=0.6)
    else:
        _stacked(axes, track)
    reserved = np.array(track.reserved_after()) / MIB
    axes.plot(range(len(reserved)), reserved, color="#D55E00", lw=1, label="reserved")
    axes.axhline((report.total_memory - report.context) / MIB, color="#333333", lw=1, ls=":", label="all of the GPU")
    axes.set(ylabel="MiB", xlabel=_label(track), xlim=(0, max(1, len(reserved))), ylim=(0, 1.15 * _top(report)))
    axes.set_title(f"{report.what}, simulated {report.gpu}", loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if report.unmodeled:
        figure.supxlabel(report.unmodeled[:160], fontsize=7, color="#D55E00")
    figure.savefig(file, format="png")


def _top(report: Report) -> float:
    return max(report.reserved, report.peak, 1) / MIB


def _label(track: Track) -> str:
    return (
        f"the highest point of each {track.stride} allocations and frees" if track.points else "allocations and frees"
    )


def _stacked(axes, track: Track) -> None:
    """Areas of the parts, one above the other."""
    parts = [track.part(number) for number, _ in track.steps()]
    names = [name for name in COLOURS if name in parts or name not in (GATHERED, REDUCED, KV_CACHE, GRAPHS)]
    row = {name: at for at, name in enumerate(names)}
    changes = np.zeros((len(names), len(parts)), dtype=np.int64)
    for at, (part, (_, change)) in enumerate(zip(parts, track.steps(), strict=True)):
        changes[row[part], at] = change
    heights = np.cumsum(changes, axis=1) / MIB
    axes.stackplot(range(len(parts)), heights, labels=names, colors=[COLOURS[one] for one in names], step="post")
