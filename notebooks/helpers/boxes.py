"""Draws the four counters of GPU memory as boxes in boxes."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import labkit
from labkit import mib, plots


def plot(about: str = "") -> Figure:
    """The counters as boxes in boxes, not to scale: nvidia-smi ⊃ context + reserved ⊃ allocated ⊃ requested, as now.

    Without NVML's figure the outer box says so. Raises ``RuntimeError`` without a GPU.
    """
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    asked = labkit.requested()
    seen = labkit.nvidia_smi()
    outer = "nvidia-smi: not reported here" if seen is None else f"nvidia-smi: {mib(seen)}"
    context = "CUDA context and what is not PyTorch's"
    context += "" if seen is None else f": {mib(seen - reserved)}"
    cached = f"free in PyTorch's cache: {mib(reserved - allocated)}"
    rounded = f"rounding to blocks: {mib(allocated - asked)}"
    nested = (
        (outer, context, "#FFFFFF"),
        (f"reserved, in segments: {mib(reserved)}", cached, plots.palette.light),
        (f"allocated, in blocks: {mib(allocated)}", rounded, plots.palette.sky),
        (f"requested, by tensors and workspaces: {mib(asked)}", "", plots.palette.blue),
    )
    alt = "Boxes in boxes, from the outside: " + "; ".join(
        f"{name} ({rest})" if rest else name for name, rest, _ in nested
    )
    figure, axes = plots.new("Four counters, one inside the other (not to scale)", f"{alt}.", about=about, height=3.6)
    for depth, (name, rest, fill) in enumerate(nested):
        left, width, height = 0.03 + 0.02 * depth, 0.94 - 0.04 * depth, 0.96 - 0.22 * depth
        axes.add_patch(Rectangle((left, 0.02 + 0.015 * depth), width, height, fc=fill, ec=plots.palette.dark, lw=1))
        ink = "white" if fill == plots.palette.blue else plots.palette.dark
        top = 0.02 + 0.015 * depth + height - 0.035
        axes.text(left + 0.015, top, name, va="top", fontweight="bold", color=ink)
        axes.text(left + 0.015, top - 0.075, rest, va="top", fontsize=8, color=ink)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    return figure
