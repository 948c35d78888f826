"""Measures over a grid of sizes, and draws a figure with sliders that select a point of it.

Every point is measured, and nothing is interpolated. If no script may run (a printed page, GitHub, an untrusted
notebook), the still shows the whole grid as a coloured table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from matplotlib.patches import Rectangle

from helpers.sliding_page import page, shown, smallest
from helpers.sweeps import clean_starts
from labkit import plots
from labkit.gpu import current, simulated_gpu
from labkit.units import mib, whole_bytes

GIB = 2**30
GAP = 0.6  # gap between two tables, in columns
SHADES = ("#CDE7DC", "#FBE3B5", "#F6C7A0", "#E9A68F", "#D98C8C")  # colours of cards, from the smallest to the largest


@dataclass
class Grid:
    """Holds measured bytes for each point of a grid; ``None`` means out of memory.

    ``axes`` has the name and the values of each axis, and ``measured`` the bytes by a tuple of values in the axes'
    order.
    """

    axes: dict[str, list]
    measured: dict[tuple, int | None] = field(default_factory=dict)

    def at(self, **point) -> int | None:
        """Returns the bytes at one point, ``at(attention="sdpa", batch=8, length=512)``; ``None`` means out of memory.

        Raises ``KeyError``, with the measured values, for a point that was not measured.
        """
        if set(point) != set(self.axes):
            raise KeyError(f"a point of this grid has {', '.join(self.axes)}, not {', '.join(point) or 'nothing'}")
        for name, value in point.items():
            if value not in self.axes[name]:
                raise KeyError(f"{name} {value!r} was not measured: {', '.join(map(str, self.axes[name]))} were")
        return self.measured[tuple(point[name] for name in self.axes)]

    def plot(self, about: str, counter: str = "Allocated peak", cards: Collection[str] = (), **start):
        """Draws the figure: a slider for each axis, and the still, a coloured table.

        ``about`` names the model. ``cards`` are names of GPUs, and the figure names the smallest on which a process may
        allocate more than that. This is a lower limit, because the cache and a different GPU's kernels may need more.
        ``start`` is the initial point of the sliders, by default their middles. Raises ``KeyError`` for a start that
        was not measured. Raises ``ValueError`` for more than five cards, for an unknown card, and if every point is out
        of memory.
        """
        if len(cards) > len(SHADES):
            raise ValueError(f"at most {len(SHADES)} cards can be told apart, not {len(cards)}")
        if all(size is None for size in self.measured.values()):
            raise ValueError("nothing to draw: memory ended at every point")
        point = {name: values[len(values) // 2] for name, values in self.axes.items()} | start
        self.at(**point)
        return Sliding(self, f"{counter}: {about}", _rooms(cards), point)


def grid(measure: Callable[..., int], **axes: Sequence) -> Grid:
    """Calls ``measure(attention="sdpa", batch=8, length=512)``, which returns bytes, for each point of the axes given.

    The last axis varies fastest. Cached segments are freed before each call, and a call that runs out of memory gives
    ``None``. Takes two or three axes of at least two values each. With three, the still has a table for each value of
    the first. Raises ``ValueError`` for other axes, and ``TypeError`` or ``ValueError`` for a result that is not a
    number of bytes.
    """
    if len(axes) not in (2, 3) or any(len(values) < 2 for values in axes.values()):
        given = ", ".join(f"{name} with {len(values)}" for name, values in axes.items()) or "none"
        raise ValueError(f"two or three axes are wanted, each of at least two values, not {given}")
    found = Grid({name: list(values) for name, values in axes.items()})
    with clean_starts() as start:
        for values in product(*found.axes.values()):
            start()
            try:
                measured = whole_bytes(measure(**dict(zip(axes, values, strict=True))))
            except torch.cuda.OutOfMemoryError:
                measured = None
            found.measured[values] = measured
    return found


class Sliding:
    """The figure of a :class:`Grid`: a page with sliders, and the still for viewers that run no script."""

    def __init__(self, found: Grid, title: str, cards: dict[str, int], start: dict[str, Any]):
        self.still = _still(found, title, cards)
        self.page = page(found, f"{title}, {current()}", cards, start, self.still.description)

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data, metadata = self.still._repr_mimebundle_()
        return data | {"text/html": self.page}, metadata

    def __repr__(self) -> str:
        return repr(self.still)


def _rooms(cards: Collection[str]) -> dict[str, int]:
    """Returns the bytes that a process may allocate on each of these GPUs, from the smallest to the largest."""
    rooms = {}
    for name in cards:
        with simulated_gpu(name):
            rooms[name] = torch.cuda.mem_get_info()[0]
    return dict(sorted(rooms.items(), key=lambda one: one[1]))


def _still(found: Grid, title: str, cards: dict[str, int]):
    """Draws the whole grid as a table, coloured by the smallest card that has more memory."""
    *outer, (down, rows), (along, columns) = found.axes.items()
    panels: list[tuple] = [(value,) for value in outer[0][1]] if outer else [()]
    words = _in_words(found, cards)
    ylabel = f"{down}; values (GiB)"
    figure, axes = plots.new(title, words, xlabel=along, ylabel=ylabel, height=1.1 + 0.27 * len(rows))
    shades = dict(zip(cards, SHADES, strict=False))
    ticks: dict[float, str] = {}
    for number, panel in enumerate(panels):
        left = number * (len(columns) + GAP)
        ticks |= {left + j: shown(value) for j, value in enumerate(columns)}
        axes.text(left - 0.45, -0.62, str(panel[0]) if panel else "", fontsize=8, va="bottom")
        for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
            size = found.measured[(*panel, row, column)]
            shade = shades.get(smallest(size, cards) or "", plots.palette.grey if cards else plots.palette.light)
            axes.add_patch(Rectangle((left + j - 0.48, i - 0.46), 0.96, 0.92, color=shade, lw=0))
            text = "no" if size is None else f"{size / GIB:.1f}"
            axes.text(left + j, i, text, ha="center", va="center", fontsize=8, color=plots.palette.dark)
    axes.set(xlim=(-0.6, len(panels) * (len(columns) + GAP) - GAP - 0.4), ylim=(len(rows) - 0.4, -1.1))
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_yticks(range(len(rows)), [shown(value) for value in rows])
    axes.tick_params(length=0)
    handles = [Rectangle((0, 0), 1, 1, color=shade, label=f"{name} has more") for name, shade in shades.items()]
    if handles:
        handles.append(Rectangle((0, 0), 1, 1, color=plots.palette.grey, label="none of them has"))
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    return figure


def _in_words(found: Grid, cards: Mapping[str, int]) -> str:
    """Describes the range of the grid, and at how many of its points each card is the smallest that is enough."""
    sizes = {point: size for point, size in found.measured.items() if size is not None}
    ends = [
        f"{mib(sizes[one])} at {_named(found, one)}"
        for one in (min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__))
    ]
    counts = [sum(smallest(size, cards) == name for size in found.measured.values()) for name in cards]
    said = [f"{name} at {count}" for name, count in zip(cards, counts, strict=True)]
    ran_out = len(found.measured) - len(sizes)
    words = f"From {ends[0]} to {ends[1]}, {len(found.measured)} points"
    words += f"; out of memory at {ran_out} of them." if ran_out else "."
    return words + (f" The smallest GPU that has more: {', '.join(said)} of the points." if said else "")


def _named(found: Grid, point: tuple) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in zip(found.axes, point, strict=True))
