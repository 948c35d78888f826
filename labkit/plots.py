"""The course's figures: one style and one palette, a title that says what was measured, units, alternative text.

Each function returns a closed figure, so that a notebook shows it once. ``about`` names the model and its size for the
title ("ThreeLinear, batch 10,240"); the counter and the GPU's name, "simulated" included, are added. What a figure
draws is also said in words: its alternative text, which a screen reader reads and the notebook's tests compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from itertools import accumulate, cycle
from textwrap import wrap
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.gpu import current, unmodeled
from labkit.timing import along_the_pipeline
from labkit.units import MiB, mib

__all__ = ["bars", "colours", "legend", "lines", "new", "page_map", "palette", "parts", "runs", "who_waits"]


class _Palette(NamedTuple):
    """Okabe and Ito's colours, which can be distinguished with any kind of colour vision, and three greys."""

    blue: str = "#0072B2"
    orange: str = "#D55E00"
    green: str = "#009E73"
    sky: str = "#56B4E9"
    purple: str = "#CC79A7"
    yellow: str = "#E69F00"
    dark: str = "#333333"
    grey: str = "#999999"
    light: str = "#E8E8E8"


palette = _Palette()
PARTS = (
    palette.blue,
    palette.orange,
    palette.green,
    palette.purple,
    palette.yellow,
    palette.sky,
    palette.grey,
)  # for curves and bars that stand for no kind of memory

# The course's palette: a kind of memory has one colour everywhere.
KINDS = {
    "parameters": palette.blue,
    "gradients": palette.orange,
    "optimizer states": palette.green,
    "activations": palette.sky,
    "temporaries": palette.yellow,
    "workspace": palette.grey,
    "cache": palette.light,
}
# Words in the name of a part that tell its kind; the first that is found decides.
KIND_WORDS = {
    "grad": "gradients",
    "activation": "activations",
    "saved": "activations",
    "kept": "activations",
    "output": "activations",
    "optimizer": "optimizer states",
    "state": "optimizer states",
    "momentum": "optimizer states",
    "workspace": "workspace",
    "temporar": "temporaries",
    "staging": "temporaries",
    "copy": "temporaries",
    "cast": "temporaries",
    "scratch": "temporaries",
    "cache": "cache",
    "free": "cache",
    "weight": "parameters",
    "parameter": "parameters",
}
OTHER = (
    palette.purple,
    palette.dark,
    "#8C6D31",
    "#44AA99",
    "#882255",
    "#999933",
)  # of parts that are none of these kinds
_BESIDE = 45  # letters of a title beside which the GPU's name has room
HATCHES = ("", "///", "...", "xxx")  # tell parts of one kind apart

STYLE = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": palette.grey,
    "axes.labelcolor": palette.dark,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": palette.dark,
    "ytick.color": palette.dark,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.constrained_layout.use": True,
}

STATES = {"active_allocated": palette.blue, "active_pending_free": palette.yellow, "inactive": palette.light}
STATE_NAMES = {
    "active_allocated": "allocated",
    "active_pending_free": "freed, another stream not done",
    "inactive": "free in the cache",
}


class Drawing(Figure):
    """Holds a figure with an alternative text, which a notebook stores next to the picture.

    As plain text it is its description; the picture's metadata have the same as ``alt``, the title, and the axes.
    """

    description = ""

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=self.dpi)
        axes = [name for one in self.axes for name in (one.get_xlabel(), one.get_ylabel()) if name]
        about = {"alt": self.description, "axes": axes, "title": title_of(self)}
        return {"image/png": picture.getvalue(), "text/plain": repr(self)}, {"image/png": about}

    def __repr__(self) -> str:
        return f"[figure] {self.description}" if self.description else super().__repr__()


def title_of(figure: Figure) -> str:
    titles = (one.get_title(loc="left") or one.get_title() for one in figure.axes)
    return "; ".join(filter(None, map(str.strip, titles)))


def new(
    title: str, alt: str, *, about: str = "", xlabel: str = "", ylabel: str = "", height: float = 3.2
) -> tuple[Drawing, Axes]:
    """Returns an empty figure in the course's style, and its axes, for a chapter's own drawing.

    ``title`` says what is drawn, and ``about`` names the model and its size after a colon. ``alt`` says in words what a
    reader would see. The labels have units. The GPU in use is named at the right. Raises ``ValueError`` without title
    or alternative text.
    """
    if not title or not alt:
        raise ValueError("a figure of the course has a title and an alternative text")
    title = f"{title}: {about}" if about else title
    with plt.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure, axes = plt.subplots(figsize=(8, height), FigureClass=Drawing)
        axes.set_title(title + ("\n" if len(title) > _BESIDE else ""), fontweight="bold")  # the GPU's name is below it
        axes.set_title(str(current()), loc="right", color=palette.grey, fontsize=8)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if missing := unmodeled():
            figure.supxlabel("\n".join(wrap(missing, 110)), color=palette.orange, fontsize=7, x=0.01, ha="left")
    plt.close(figure)
    assert isinstance(figure, Drawing)
    figure.description = f"{title}, {current()}. {alt}"
    return figure, axes


def colour(part: str) -> str | None:
    """The colour of a part by its name: that of its kind, or None if the name contains none."""
    name = part.casefold()
    kind = next((kind for word, kind in KIND_WORDS.items() if word in name), None)
    return KINDS[kind] if kind else None


def colours(parts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a hatch for each part: of its kind, told apart by hatches where several parts are of one kind.

    Raises ``ValueError`` for more parts than can be told apart.
    """
    found: dict[str, tuple[str, str]] = {}
    others = cycle(OTHER)
    for part in parts:
        chosen = colour(part) or next(others)
        used = sum(taken == chosen for taken, _ in found.values())
        if used >= len(HATCHES):
            raise ValueError(
                f"parts that cannot be told apart: {part!r} of {', '.join(parts)}; use kinds of {list(KINDS)}"
            )
        found[part] = chosen, HATCHES[used]
    return found


def legend(axes: Axes, handles: list | None = None) -> None:
    """Puts the legend to the right of the axes."""
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)


def timeline(
    snapshot: Mapping, allocated: Sequence[int], stages: Iterable = (), about: str = "", title: str = ""
) -> Drawing:
    """Draws memory after each event of ``torch.cuda.memory._snapshot()``, with the ledger's stages.

    ``allocated`` holds the allocated bytes when the history began and after each event, as ``ledger.curve()`` does.
    ``title`` states the finding; without it the title names the counters and ``about``.
    """
    trace = snapshot["device_traces"][0]
    got = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [got.get(e["action"], 0) * e["size"] for e in trace]
    kept = sum(segment["total_size"] for segment in snapshot["segments"]) - sum(changes)
    reserved = list(accumulate(changes, initial=kept))
    shown = [stage for stage in stages if stage.events]
    highest = max(range(len(allocated)), key=allocated.__getitem__)
    where = next((f", in {s.name}" for s in shown if s.events[0] <= highest <= s.events[1]), "")
    alt = f"Allocated rises to {mib(allocated[highest])}{where}, and ends at {mib(allocated[-1])}; "
    alt += f"reserved ends at {mib(reserved[-1])}."
    figure, axes = new(title or "Allocated and reserved over time", alt, about="" if title else about)
    lines = [[n / MiB for n in line] for line in (allocated, reserved)]
    axes.fill_between(range(len(lines[0])), lines[0], step="post", color=palette.sky, alpha=0.6, lw=0)
    axes.step(range(len(lines[0])), lines[0], where="post", color=palette.blue, lw=1.2, label="allocated")
    axes.step(range(len(lines[1])), lines[1], where="post", color=palette.orange, lw=1.2, label="reserved")
    top = max(map(max, lines)) or 1
    axes.plot(highest, lines[0][highest], "v", color=palette.dark, ms=5, label=f"peak, {mib(allocated[highest])}")
    axes.set(xlim=(0, len(trace) or 1), ylim=(0, top * 1.25), xlabel="event of the allocator", ylabel="MiB")
    for i, stage in enumerate(shown):
        first, last = stage.events
        axes.axvspan(first, last, color=palette.grey, alpha=0.12 if i % 2 else 0.04, lw=0)
        # Three heights in turn, so that the names of short stages do not run into each other.
        axes.text(first, top * (1.23 - 0.065 * (i % 3)), f" {stage.name}", va="top", fontsize=8, color=palette.dark)
    legend(axes)
    return figure


def runs(curves: Mapping[str, Sequence[int]], about: str = "") -> Drawing:
    """Several runs on the same axes: ``{name: ledger.curve()}``, the allocated bytes after each event of each run."""
    said = [f"{name} rises to {mib(max(curve))} and has {len(curve) - 1:,} events" for name, curve in curves.items()]
    figure, axes = new("Allocated over time", "; ".join(said) + ".", about=about)
    for (name, curve), line in zip(curves.items(), cycle(PARTS), strict=False):
        sizes, peak = [n / MiB for n in curve], max(curve)
        axes.step(range(len(sizes)), sizes, where="post", color=line, lw=1.2, label=f"{name},\npeak {mib(peak)}")
        axes.plot(curve.index(peak), peak / MiB, "v", color=line, ms=5)
    axes.set(xlabel="event of the allocator", ylabel="MiB", ylim=(0, None), xlim=(0, None))
    legend(axes)
    return figure


def stages(stages: Iterable, about: str = "") -> Drawing:
    """The ledger's stages: allocated before, added, and the peak within; the reserved memory as a line."""
    rows = list(stages)
    said = "; ".join(f"{s.name} adds {mib(s.added)} and peaks at {mib(s.peak)}" for s in rows)
    height = 1.2 + 0.42 * max(len(rows), 2)
    figure, axes = new("Allocated memory by stage", f"{said}." if said else "No stage.", about=about, height=height)
    for y, s in enumerate(rows):
        axes.barh(y, min(s.before, s.after) / MiB, color=palette.sky, height=0.6)
        change = palette.green if s.added >= 0 else palette.light
        axes.barh(y, abs(s.added) / MiB, left=min(s.before, s.after) / MiB, color=change, height=0.6)
        axes.plot([s.peak / MiB] * 2, [y - 0.36, y + 0.36], color=palette.orange, lw=2.5)
        axes.plot([s.reserved / MiB] * 2, [y - 0.36, y + 0.36], color=palette.dark, lw=1, ls=":")
    names = [s.name + (" (failed)" if s.failed else "") for s in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("MiB")
    handles = [
        Patch(color=palette.sky, label="held throughout"),
        Patch(color=palette.green, label="added"),
        Patch(color=palette.light, label="given back"),
        Line2D([], [], color=palette.orange, lw=2.5, label="peak within"),
        Line2D([], [], color=palette.dark, lw=1, ls=":", label="reserved after"),
    ]
    legend(axes, handles)
    return figure


def parts(
    stages: Mapping[str, Mapping[str, int]],
    measured: Mapping[str, int] | None = None,
    about: str = "",
    counter: str = "allocated",
    title: str = "",
) -> Drawing:
    """Stack the parts of each stage's memory, ``{stage: {part: bytes}}``, with a mark for what was measured.

    A part has the colour of its kind (parameters, gradients, optimizer states, activations, temporaries, workspace,
    cache), which its name contains: "gradients of weights". ``title`` says the finding; without it the title names
    ``counter`` and ``about``. Raises ``ValueError`` for parts that cannot be distinguished.
    """
    names = list(dict.fromkeys(part for made_of in stages.values() for part in made_of))
    look = colours(names)
    said = [f"{stage}: {', '.join(f'{p} {mib(n)}' for p, n in made.items() if n)}" for stage, made in stages.items()]
    figure, axes = new(title or f"What is {counter}", "; ".join(said) + ".", about="" if title else about, ylabel="MiB")
    bottom = [0.0] * len(stages)
    for name in names:
        sizes = [made_of.get(name, 0) / MiB for made_of in stages.values()]
        fill, hatch = look[name]
        axes.bar(list(stages), sizes, bottom=bottom, color=fill, hatch=hatch, width=0.6, label=name, ec="white", lw=0.5)
        bottom = [low + size for low, size in zip(bottom, sizes, strict=True)]
    for x, stage in enumerate(stages):
        if measured and stage in measured:
            label = "measured" if stage == next(iter(measured)) else None
            axes.plot([x - 0.38, x + 0.38], [measured[stage] / MiB] * 2, color=palette.dark, lw=2, label=label)
    handles, labels = axes.get_legend_handles_labels()
    legend(axes, [handle for _, handle in reversed(list(zip(labels, handles, strict=True)))])  # as they are stacked
    return figure


def lines(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str = "MiB",
    alt: str = "",
) -> Drawing:
    """Curves over ``xs`` with points, ``{name: values}``; a name that contains a kind of memory has its colour.

    Without ``alt`` the alternative text gives each curve's first, highest and last value. Raises ``ValueError`` for a
    curve of another length than ``xs``.
    """
    for name, values in curves.items():
        if len(values) != len(xs):
            raise ValueError(f"{name!r} has {len(values)} values for {len(xs)} of {xlabel}")
    shown = _brief if ylabel in ("ms", "s") else partial(digits, count=4)
    said = [
        f"{name} goes from {shown(values[0])} to {shown(values[-1])}, at most {shown(max(values))} {ylabel}"
        for name, values in curves.items()
    ]
    figure, axes = new(title, alt or "; ".join(said) + ".", xlabel=xlabel, ylabel=ylabel)
    free = iter(PARTS)
    for name, values in curves.items():
        axes.plot(xs, values, "o-", color=colour(name) or next(free), ms=4, lw=1.2, label=name)
    axes.set_ylim(bottom=min(0, *(min(values) for values in curves.values())))
    legend(axes)
    return figure


def bars(values: Mapping[str, float], title: str, xlabel: str, kind: str = "") -> Drawing:
    """Horizontal bars with their values, the longest on top: ``{name: value}``, in the unit that ``xlabel`` names.

    ``kind`` is the kind of memory whose colour the bars have. Raises ``KeyError`` for an unknown kind.
    """
    rows = sorted(values.items(), key=lambda row: row[1])
    said = "; ".join(f"{name} {digits(value)}" for name, value in reversed(rows))
    figure, axes = new(title, f"{said}.", xlabel=xlabel, height=1.1 + 0.24 * len(rows))
    drawn = axes.barh(
        [name for name, _ in rows], [value for _, value in rows], color=KINDS[kind] if kind else palette.blue
    )
    axes.bar_label(drawn, fmt=digits, padding=3, fontsize=8, color=palette.dark)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)
    return figure


def page_map(segments: Sequence[Mapping] | None = None, first: int | None = None, about: str = "") -> Drawing:
    """The allocator's segments, one a row, and the blocks in each, from ``torch.cuda.memory_snapshot()``.

    All rows have one scale: a segment of 20 MiB is ten times as long as one of 2 MiB. ``first`` draws only that many
    bytes of each segment, so that blocks of 512 B can be seen; a block too narrow to be seen is drawn as a thin line.
    """
    segments = list(torch.cuda.memory_snapshot() if segments is None else segments)
    lengths = [min(first or s["total_size"], s["total_size"]) for s in segments]
    scale = max(lengths, default=1)
    said = "; ".join(map(_in_words, segments)) + "." if segments else "Nothing is reserved."
    figure, axes = new(
        "Reserved segments and their blocks", said, about=about, height=1.1 + 0.42 * max(len(segments), 1)
    )
    states = []
    for y, (segment, shown) in enumerate(zip(segments, lengths, strict=True)):
        at = 0
        for piece in segment["blocks"]:
            left, right = min(at, shown) / MiB, min(at + piece["size"], shown) / MiB
            at += piece["size"]
            if left == right:
                continue
            states.append(piece["state"])
            width = max(right - left, 0.002 * scale / MiB)
            axes.barh(y, width, left=left, color=STATES[piece["state"]], ec="white", lw=0.6, height=0.7)
            if (right - left) * MiB > 0.07 * scale:
                ink = "white" if piece["state"] == "active_allocated" else palette.dark
                centre = {"ha": "center", "va": "center", "fontsize": 7}
                size = piece["size"]
                label = f"{size / MiB:.4g} MiB" if size >= MiB else _short(size)
                axes.text((left + right) / 2, y, label, color=ink, **centre)
    names = [f"{s['segment_type']}, {_short(s['total_size'])}" for s in segments]
    axes.set_yticks(range(len(segments)), names)
    width = f"MiB from the start, the first {_short(first)} of each" if first else "MiB from the segment's start"
    axes.set(xlim=(0, scale / MiB), xlabel=width if segments else "MiB; no segments: nothing is reserved")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    legend(axes, [Patch(color=STATES[s], label=STATE_NAMES[s]) for s in STATES if s in states])
    return figure


def _in_words(segment: Mapping) -> str:
    """A segment and what is in it."""
    used = [piece["size"] for piece in segment["blocks"] if piece["state"] == "active_allocated"]
    return (
        f"{segment['segment_type']} segment of {_short(segment['total_size'])}: "
        f"{len(used)} blocks with {_short(sum(used))} allocated, {len(segment['blocks']) - len(used)} free"
    )


_LANES = ("worker", "pinning thread", "host", "copy to GPU", "compute", "communication", "copy to host")  # downwards
_LANE_COLOURS = {
    "issues operators": palette.sky,
    "waits for the GPU": palette.light,
    "waits for a batch": palette.yellow,
    "worker": palette.green,
    "pinning thread": palette.purple,
    "copy to GPU": palette.orange,
    "compute": palette.blue,
    "communication": palette.purple,
    "copy to host": palette.orange,
}


def who_waits(timing, about: str = "", until: float | None = None) -> Drawing:
    """The lanes of ``labkit.stopwatch(lanes=True)``: host, workers, copies, compute, communication; who waits for whom.

    ``until`` is the number of milliseconds to draw. Neighbouring intervals of one kind that cannot be told apart
    are drawn as one. On a real GPU nothing is recorded, and the figure says so.
    """
    end = until or max((one.end for one in timing.lanes), default=1.0)
    pieces = _lane_pieces([one for one in timing.lanes if one.start < end], end)
    names = sorted({lane for lane, _ in pieces}, key=along_the_pipeline)
    busy = {name: _busy(pieces, name) for name in names}
    said = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {_brief(ms)} ms" for kind, ms in busy[name].items()) for name in names
    )
    said = f"Of about {_brief(end)} ms, {said}." if names else "No lanes: torch.profiler records those of a real GPU."
    figure, axes = new("Who does what when", said, about=about, xlabel="ms", height=1.2 + 0.36 * max(len(names), 2))
    used: dict[str, str] = {}
    for (lane, kind), spans in pieces.items():
        fill = _LANE_COLOURS.get(kind) or next(c for c in (*OTHER, *PARTS) if c not in used.values())
        used.setdefault(kind, fill)
        axes.broken_barh(spans, (names.index(lane) - 0.36, 0.72), fc=used[kind], ec="white", lw=0.4)
    axes.set(xlim=(0, end), ylim=(max(len(names), 1) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    legend(axes, [Patch(color=used[kind], label=kind) for lane, kind in pieces if lane == "host"])
    return figure


def digits(value: float, count: int = 3) -> str:
    """So many digits, and all of a larger number's before the point: 0.123, 12.3, 12,345."""
    return f"{value:.{count}g}" if abs(value) < 10**count else f"{value:,.0f}"


def _brief(ms: float) -> str:
    """Two digits, as many as a simulated time has: 0.12, 1.2, 120, 12,000."""
    return digits(float(f"{ms:.2g}"), 2)


def _lane_kind(one) -> str:
    """Returns the kind of an interval: work of the host has several kinds, and each other lane has one."""
    if one.lane.startswith("worker"):
        return "worker"
    return one.name if one.lane == "host" else one.lane


def _lane_pieces(intervals, end: float) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Start and length in ms of what is drawn, by lane and kind; gaps below a thousandth of the figure are closed."""
    pieces: dict[tuple[str, str], list[tuple[float, float]]] = {}
    last: dict[str, tuple[str, str]] = {}
    for one in sorted(intervals, key=lambda one: one.start):
        kind = _lane_kind(one)
        told_apart = kind, one.name.partition(":")[0] if one.name.startswith("batch ") else ""
        spans = pieces.setdefault((one.lane, kind), [])
        start, stop = max(one.start, 0.0), min(one.end, end)
        if spans and last[one.lane] == told_apart and start - sum(spans[-1]) < end / 1000:
            before = spans.pop()[0]
            start, stop = before, max(stop, start)
        spans.append((start, stop - start))
        last[one.lane] = told_apart
    return pieces


def _busy(pieces, name: str) -> dict[str, float]:
    return {kind: sum(length for _, length in spans) for (lane, kind), spans in pieces.items() if lane == name}


def _short(size: int) -> str:
    """A size short enough for a label, never rounded: in MiB, KiB or B, whichever divides it."""
    for unit, name in ((MiB, "MiB"), (MiB // 8, "MiB"), (1024, "KiB")):
        if size % unit == 0 and size:
            return f"{size / (MiB if name == 'MiB' else unit):g} {name}"
    return f"{size} B"
