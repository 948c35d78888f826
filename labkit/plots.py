"""The course's figures: one style, units on every axis, and the GPU's name in each.

Each function returns a closed figure, so that a notebook shows it once. What it draws is also in a table or
a counter that the notebook prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from textwrap import wrap

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import linspace

from labkit.formulas import block
from labkit.gpu import current, left_out
from labkit.units import MIB

# Okabe and Ito's palette, told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, SKY, PURPLE, YELLOW = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00"
DARK, GREY, LIGHT = "#333333", "#999999", "#E8E8E8"
PARTS = (BLUE, YELLOW, GREEN, PURPLE, SKY, ORANGE, GREY)

STYLE = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": DARK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.constrained_layout.use": True,
}

STATES = {"active_allocated": BLUE, "active_pending_free": YELLOW, "inactive": LIGHT}
STATE_NAMES = {
    "active_allocated": "allocated",
    "active_pending_free": "freed, another stream not done",
    "inactive": "free in the cache",
}


def _new(title: str, height: float = 3.2) -> tuple[Figure, Axes]:
    with plt.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
        figure, axes = plt.subplots(figsize=(8, height))
        axes.set_title(title, fontweight="bold")
        axes.set_title(str(current()), loc="right", color=GREY, fontsize=8)
        if missing := left_out():
            figure.supxlabel("\n".join(wrap(missing, 110)), color=ORANGE, fontsize=7, x=0.01, ha="left")
    plt.close(figure)
    return figure, axes


def _legend(axes: Axes, handles: list | None = None) -> None:
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)


def timeline(snapshot: Mapping, stages: Iterable = (), start: int = 0) -> Figure:
    """Memory after each event of ``torch.cuda.memory._snapshot()``, with the ledger's stages.

    ``start`` bytes were allocated when the history began. Requests are rounded up to blocks of 512 B; the
    remainder that may stay with a large block (up to 1 MiB) is not in the history and not in the curve.
    """
    trace = snapshot["device_traces"][0]
    figure, axes = _new("Memory over time")
    held = {"alloc": 1, "free_requested": -1}
    got = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    allocated = accumulate((held.get(e["action"], 0) * block(e["size"]) for e in trace), initial=start)
    changes = [got.get(e["action"], 0) * e["size"] for e in trace]
    kept = sum(segment["total_size"] for segment in snapshot["segments"]) - sum(changes)
    reserved = accumulate(changes, initial=kept)
    allocated, reserved = ([n / MIB for n in line] for line in (allocated, reserved))
    axes.fill_between(range(len(allocated)), allocated, step="post", color=SKY, alpha=0.6, lw=0)
    axes.step(range(len(allocated)), allocated, where="post", color=BLUE, lw=1.2, label="allocated")
    axes.step(range(len(reserved)), reserved, where="post", color=ORANGE, lw=1.2, label="reserved")
    top = max(reserved + allocated) or 1
    axes.set(xlim=(0, len(trace) or 1), ylim=(0, top * 1.2), xlabel="event of the allocator", ylabel="MiB")
    for i, stage in enumerate(s for s in stages if s.events):
        first, last = stage.events
        axes.axvspan(first, last, color=GREY, alpha=0.12 if i % 2 else 0.04, lw=0)
        # Two heights in turn, so that the names of short stages do not run into each other.
        axes.text(first, top * (1.17 - 0.07 * (i % 2)), f" {stage.name}", va="top", fontsize=8, color=DARK)
    _legend(axes)
    return figure


def stages(stages: Iterable) -> Figure:
    """The ledger's stages: allocated before, added, and the peak within; the reserved memory as a line."""
    rows = list(stages)
    figure, axes = _new("Memory by stage", height=1.2 + 0.42 * max(len(rows), 2))
    for y, s in enumerate(rows):
        axes.barh(y, min(s.before, s.after) / MIB, color=SKY, height=0.6)
        change = GREEN if s.added >= 0 else LIGHT
        axes.barh(y, abs(s.added) / MIB, left=min(s.before, s.after) / MIB, color=change, height=0.6)
        axes.plot([s.peak / MIB] * 2, [y - 0.36, y + 0.36], color=ORANGE, lw=2.5)
        axes.plot([s.reserved / MIB] * 2, [y - 0.36, y + 0.36], color=DARK, lw=1, ls=":")
    names = [s.name + (" (failed)" if s.failed else "") for s in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlabel("MiB")
    handles = [
        Patch(color=SKY, label="held throughout"),
        Patch(color=GREEN, label="added"),
        Patch(color=LIGHT, label="given back"),
        Line2D([], [], color=ORANGE, lw=2.5, label="peak within"),
        Line2D([], [], color=DARK, lw=1, ls=":", label="reserved after"),
    ]
    _legend(axes, handles)
    return figure


def parts(stages: Mapping[str, Mapping[str, int]], measured: Mapping[str, int] | None = None) -> Figure:
    """What each stage's memory is made of: ``{stage: {part: bytes}}``; a mark for what was measured.

    Parts keep their colour and their order over the stages. Raises ``ValueError`` above seven parts.
    """
    names = list(dict.fromkeys(part for made_of in stages.values() for part in made_of))
    if len(names) > len(PARTS):
        raise ValueError(f"colours tell {len(PARTS)} parts apart, not {len(names)}: {', '.join(names)}")
    figure, axes = _new("What the memory is made of")
    bottom = [0.0] * len(stages)
    for name, colour in zip(names, PARTS, strict=False):
        sizes = [made_of.get(name, 0) / MIB for made_of in stages.values()]
        axes.bar(list(stages), sizes, bottom=bottom, color=colour, width=0.6, label=name, ec="white", lw=0.5)
        bottom = [low + size for low, size in zip(bottom, sizes, strict=True)]
    for x, stage in enumerate(stages):
        if measured and stage in measured:
            label = "measured" if stage == next(iter(measured)) else None
            axes.plot([x - 0.38, x + 0.38], [measured[stage] / MIB] * 2, color=DARK, lw=2, label=label)
    axes.set_ylabel("MiB")
    _legend(axes)
    return figure


def page_map(segments: Sequence[Mapping] | None = None, first: int | None = None) -> Figure:
    """The allocator's segments, one a row, and the blocks in each, from ``torch.cuda.memory_snapshot()``.

    Each row has its segment's full size as width. ``first`` draws only that many bytes of each segment, so
    that blocks of 512 B can be seen; a block too narrow to be seen is drawn as a thin line.
    """
    segments = list(torch.cuda.memory_snapshot() if segments is None else segments)
    figure, axes = _new("Segments and their blocks", height=1.1 + 0.42 * max(len(segments), 1))
    states = []
    for y, segment in enumerate(segments):
        shown = min(first or segment["total_size"], segment["total_size"])
        at = 0
        for piece in segment["blocks"]:
            left, right = min(at, shown) / shown, min(at + piece["size"], shown) / shown
            at += piece["size"]
            if left == right:
                continue
            states.append(piece["state"])
            width = max(right - left, 0.003)
            axes.barh(y, width, left=left, color=STATES[piece["state"]], ec="white", lw=0.6, height=0.7)
            if right - left > 0.07:
                ink = "white" if piece["state"] == "active_allocated" else DARK
                centre = {"ha": "center", "va": "center", "fontsize": 7}
                axes.text((left + right) / 2, y, _short(piece["size"]), color=ink, **centre)
    names = [f"{s['segment_type']}, {_short(s['total_size'])}" for s in segments]
    axes.set_yticks(range(len(segments)), names)
    width = f"the first {_short(first)} of each segment" if first else "the whole of each segment, by address"
    axes.set(xlim=(0, 1), xticks=[], xlabel=width if segments else "no segments: nothing is reserved")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    _legend(axes, [Patch(color=STATES[s], label=STATE_NAMES[s]) for s in STATES if s in states])
    return figure


def sweep(result, fit=None) -> Figure:
    """A :class:`labkit.sweep.Sweep`, with the polynomial ``fit`` (size to MiB) and its formula."""
    figure, axes = _new(f"Memory by {result.name}")
    axes.plot(result.sizes, [n / MIB for n in result.measured], "o", color=BLUE, ms=5, label="measured")
    if fit is not None:
        xs = linspace(min(result.sizes), max(result.sizes), 200)
        axes.plot(xs, fit(xs), color=ORANGE, lw=1.2, zorder=1, label=f"{formula(fit)} MiB")
    if result.stopped is not None:
        axes.axvline(result.stopped, color=DARK, lw=1, ls=":", label=f"out of memory at {result.stopped:,}")
        axes.set_xlim(right=min(result.stopped, 1.25 * max(result.sizes, default=result.stopped)) * 1.05)
    axes.set(xlabel=result.name, ylabel="MiB")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _legend(axes)
    return figure


def formula(fit) -> str:
    """A polynomial as text, with four digits: ``0.00123x² + 0.6039x + 437.9``."""
    powers = ["", "x", "x²", "x³", "x⁴"]
    terms = [f"{c:.4g}{p}" for c, p in zip(fit.convert().coef, powers, strict=False)]
    return " + ".join(reversed(terms)).replace("+ -", "- ")


def _short(size: int) -> str:
    """A size short enough for a label, never rounded: in MiB, KiB or B, whichever divides it."""
    for unit, name in ((MIB, "MiB"), (MIB // 8, "MiB"), (1024, "KiB")):
        if size % unit == 0 and size:
            return f"{size / (MIB if name == 'MiB' else unit):g} {name}"
    return f"{size} B"
