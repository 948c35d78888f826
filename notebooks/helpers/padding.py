"""Draws padded batches to scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from labkit import plots

GAP = 60  # sequences between one way and the next


def plot(ways: Mapping[str, Sequence[tuple[int, Sequence[int]]]], title: str) -> Figure:
    """Draws each batch as a rectangle of sequences × tokens in grey, with the tokens that are not padding in blue.

    ``ways`` has the batches of each way in their order: the padded length, and the lengths of the sequences.
    """
    shares = ", ".join(f"{share(batches):.0f} % of the rectangles when {way}" for way, batches in ways.items())
    across, up = f"sequences: {', then '.join(ways)}", "length (tokens per sequence)"
    figure, axes = plots.new(title, f"Text fills {shares}.", xlabel=across, ylabel=up)
    at = 0
    for batches in ways.values():
        for width, lengths in batches:
            axes.bar(at, width, width=len(lengths), align="edge", color=plots.palette.light, ec="white", lw=0.5)
            axes.bar(range(at, at + len(lengths)), lengths, width=1, align="edge", color=plots.palette.sky)
            at += len(lengths)
        at += GAP
    axes.set(xlim=(0, at - GAP), xticks=[])
    return figure


def share(batches: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Returns the percentage of a way's computed tokens that are not padding."""
    return 100 * sum(sum(lengths) for _, lengths in batches) / sum(width * len(lengths) for width, lengths in batches)
