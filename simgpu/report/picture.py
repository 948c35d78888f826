"""A picture of memory over a run: what it is made of after each event, or, of a long run, its highest points."""

from pathlib import Path

import numpy as np

from simgpu.report.owners import ACTIVATIONS, DATA, GRADIENTS, GRAPHS, PARAMETERS, STATES, TEMPORARIES, WORKSPACES
from simgpu.report.report import Report
from simgpu.report.sizes import MIB
from simgpu.report.timeline import EVENTS, Timeline

# Okabe and Ito's palette, told apart with any kind of colour vision.
COLOURS = {
    PARAMETERS: "#0072B2",
    STATES: "#CC79A7",
    GRADIENTS: "#009E73",
    DATA: "#56B4E9",
    WORKSPACES: "#999999",
    ACTIVATIONS: "#E69F00",
    TEMPORARIES: "#F0E442",
    GRAPHS: "#000000",
}


def draw(report: Report, timeline: Timeline, path: Path) -> None:
    """Writes the picture as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if timeline.events <= EVENTS:
        _stacked(axes, timeline)
    else:
        points = np.array(timeline.curve[0::2]) / MIB
        axes.fill_between(range(len(points)), points, color="#56B4E9", alpha=0.6)
    reserved = np.array(timeline.curve[1::2]) / MIB
    axes.plot(range(len(reserved)), reserved, color="#D55E00", lw=1, label="reserved")
    axes.axhline((report.total_memory - report.context) / MIB, color="#333333", lw=1, ls=":", label="all of the GPU")
    axes.set(ylabel="MiB", xlabel=_label(timeline), xlim=(0, max(1, len(reserved))), ylim=(0, 1.15 * _top(report)))
    axes.set_title(f"{report.what}, simulated {report.gpu}", loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if report.unmodeled:
        figure.supxlabel(report.unmodeled[:160], fontsize=7, color="#D55E00")
    figure.savefig(path)


def _top(report: Report) -> float:
    return max(report.reserved, report.peak, 1) / MIB


def _label(timeline: Timeline) -> str:
    points = len(timeline.curve) // 2
    if timeline.events <= EVENTS:
        return "allocations and frees"
    return f"the highest point of each {timeline.events // max(1, points)} allocations and frees"


def _stacked(axes, timeline: Timeline) -> None:
    """Areas of the parts, one above the other."""
    drawn = {held.part() for held in timeline.log}
    names = [name for name in COLOURS if name in drawn or name != GRAPHS]
    row = {name: at for at, name in enumerate(names)}
    changes = np.zeros((len(names), len(timeline.log)), dtype=np.int64)
    alive = set()
    for at, held in enumerate(timeline.log):
        sign = -1 if held in alive else 1
        (alive.add if sign > 0 else alive.remove)(held)
        changes[row[held.part()], at] = sign * held.size
    heights = np.cumsum(changes, axis=1) / MIB
    axes.stackplot(range(len(timeline.log)), heights, labels=names, colors=[COLOURS[one] for one in names], step="post")
