"""Draws a pipeline's schedule: which rank works on which micro-batch when, and which ranks are idle."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from labkit.plots import legend, new, palette

COLOURS = {
    "forward": palette.blue,
    "backward": palette.green,
    "weights": palette.orange,
    "gradients": palette.yellow,
    "": palette.purple,
}
NAMES = {
    "forward": "forward",
    "backward": "backward",
    "weights": "weights' gradients",
    "gradients": "gradients, once a step",
    "": "other",
}
_STAGE_TINTS = (0.0, 0.45, 0.65, 0.8)  # how much lighter the first, second, ... stage of a rank is drawn
_NARROWEST = 0.012  # share of the figure's width; a narrower box has no number


def schedule(timeline, about: str = "") -> Figure:
    """Draws the ranks of ``simgpu.together`` as rows, with a numbered box per micro-batch; idle time is grey.

    The later stages of a rank with several stages have lighter colours. The alternative text gives each rank's idle
    time and share. Raises ``ValueError`` for a timeline without pieces, whose ranks named none of their work.
    """
    if not timeline.pieces:
        raise ValueError(
            "the timeline has no pieces to draw: its ranks ran no stage of torch.distributed.pipelining, and named "
            'nothing themselves, as `with torch.profiler.record_function("forward 0"):` does'
        )
    start, end = timeline.span
    length = end - start
    figure, axes = new(
        f"Schedule, {timeline.bubble:.1%} idle",
        in_words(timeline),
        about=about,
        xlabel="ms",
        height=1.3 + 0.42 * max(len(timeline.ranks), 2),
    )
    kinds = []
    for row, rank in enumerate(timeline.ranks):
        axes.add_patch(Rectangle((0, row - 0.4), 1e3 * length, 0.8, fc=palette.light, ec="none", zorder=0))
        pieces = timeline.of(rank)
        stages = sorted({one.piece.stage for one in pieces if one.piece.stage is not None})
        for one in pieces:
            piece = one.piece
            kinds += [piece.kind] if one.seconds > _NARROWEST * length / 10 else []
            tint = _STAGE_TINTS[min(stages.index(piece.stage), len(_STAGE_TINTS) - 1)] if piece.stage in stages else 0.0
            at, width = 1e3 * (one.start - start), 1e3 * one.seconds
            box = Rectangle((at, row - 0.4), width, 0.8, fc=lighter(COLOURS[piece.kind], tint), ec="white", lw=0.5)
            axes.add_patch(box)
            if piece.microbatch is not None and one.seconds > _NARROWEST * length:
                ink = palette.dark if tint > 0.3 else "white"
                label = {"ha": "center", "va": "center", "fontsize": 7, "color": ink}
                axes.text(at + width / 2, row, str(piece.microbatch), **label)
    axes.set(xlim=(0, 1e3 * length), ylim=(len(timeline.ranks) - 0.5, -0.5))
    axes.set_yticks(range(len(timeline.ranks)), [f"rank {rank}" for rank in timeline.ranks])
    axes.tick_params(axis="y", length=0)
    shown = {NAMES[kind]: COLOURS[kind] for kind in COLOURS if kind in kinds} | {"idle": palette.light}
    legend(axes, [Patch(color=shown[name], label=name) for name in shown])
    return figure


def in_words(timeline) -> str:
    """Describes the figure: how long the step takes, and how long each rank is idle."""
    start, end = timeline.span
    length = end - start
    said = "; ".join(
        f"rank {rank} works on {_count(timeline.of(rank))} and is idle {_ms(timeline.idle(rank))} ms "
        f"({timeline.idle(rank) / length:.1%})"
        for rank in timeline.ranks
    )
    return f"In about {_ms(length)} ms (estimate), {said}."


def _ms(seconds: float) -> str:
    """Returns milliseconds with two significant digits."""
    value = float(f"{1e3 * seconds:.2g}")
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _count(pieces) -> str:
    """Counts the pieces, and separately those that occur once per step."""
    once = sum(one.piece.kind == "gradients" for one in pieces)
    return f"{len(pieces) - once} pieces" + (f", on the gradients of {once} stages once a step," if once else "")


def table(timeline) -> pd.DataFrame:
    """Returns the data behind the figure, a row per piece: rank, name, stage, micro-batch, start and end in ms."""
    start = timeline.span[0]
    return pd.DataFrame(
        [
            (
                one.rank,
                one.piece.name,
                one.piece.stage,
                one.piece.microbatch,
                1e3 * (one.start - start),
                1e3 * (one.end - start),
            )
            for one in timeline.pieces
        ],
        columns=["rank", "piece", "stage", "micro-batch", "start (ms)", "end (ms)"],
    )


def lighter(colour: str, share: float) -> str:
    """Mixes a colour with white, by the given share of white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
