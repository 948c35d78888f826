"""Draws what a row of operators saves for backward, on the arrows between them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from labkit import plots


def plot(rows: Sequence[Sequence[tuple[str, int, str, int]]], title: str, unit: int = 1, name: str = "B") -> Figure:
    """Operators in rows, from left to right, with the bytes that are kept on the arrows between them.

    An operator is ``(name, kept, beside, kept_beside)``: the bytes kept of the tensor that goes into it, and the name
    and the bytes of what it keeps besides ("" and 0: nothing). Kept tensors are drawn as thick as they are large,
    others thin; numbers are multiples of ``unit``, which is called ``name``. Raises ``ValueError`` for a unit of 0.
    """
    if not unit:
        raise ValueError("plot: the unit of the numbers is 0")
    kept = [(f"into {operator}", size) for row in rows for operator, size, _, _ in row if size]
    kept += [(f"{beside} of {operator}", size) for row in rows for operator, _, beside, size in row if size]
    alt = "; ".join(f"{what} {size / unit:.4g} {name}" for what, size in kept)
    figure, axes = plots.new(title, f"Kept {alt}." if kept else "Nothing is kept.", height=0.6 + 1.15 * len(rows))
    most = max((size for _, size in kept), default=1)
    columns = max(map(len, rows), default=1)
    for y, row in enumerate(rows):
        for x, (operator, size, beside, more) in enumerate(row):
            colour_of = plots.palette.sky if size else plots.palette.grey
            axes.plot([x - 0.72, x - 0.34], [-y, -y], color=colour_of, lw=1 + 9 * size / most, solid_capstyle="butt")
            axes.plot(x - 0.36, -y, ">", color=colour_of, ms=4)
            if size:
                axes.text(x - 0.54, 0.2 - y, f"{size / unit:.4g}", ha="center", fontsize=8, fontweight="bold")
            box = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": plots.palette.dark, "lw": 0.8}
            axes.text(x, -y, operator, ha="center", va="center", fontsize=7, bbox=box)
            if more:
                label = f"{beside} {more / unit:.4g}"
                axes.text(
                    x,
                    -0.38 - y,
                    label,
                    ha="center",
                    va="center",
                    fontsize=7,
                    bbox={"fc": plots.palette.sky, "ec": "none"},
                )
    axes.text(-0.9, 0.42, f"numbers: kept, in {name}", fontsize=8)
    axes.set(xlim=(-0.95, columns - 0.45), ylim=(-len(rows) + 0.4, 0.6))
    axes.axis("off")
    return figure
