"""Draws the budget chart: the peaks of a training step under one technique after another, and what the card offers."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.figure import Figure

from labkit import plots, simulated_gpu
from labkit.units import MiB, mib

PEAKS = {"forward and backward": "activations", "optimizer step": "optimizer states"}
"""The two peaks of a training step, and the kind of memory whose colour each bar has."""


class Budget:
    """Collects the two peaks of a training step for each technique, and draws them against the memory of a GPU.

    >>> budget = Budget("T4", 14_779 * MiB)
    >>> budget.add("whole batch", 36_370 * MiB, 16_337 * MiB)
    >>> budget.plot("1.7B, bf16, AdamW")

    ``gpu`` is the name of the card. ``limit`` is how many bytes of it PyTorch can allocate. ``chapter`` is the number
    of the chapter that adds techniques, which is written in front of their names. The first ``earlier`` rows are drawn
    paler than those that follow them.
    """

    def __init__(self, gpu: str, limit: int, chapter: str = ""):
        self.gpu, self.limit, self.chapter = gpu, limit, chapter
        self.rows: dict[str, tuple[int, int]] = {}
        self.earlier = 0

    def add(self, technique: str, backward: int, step: int) -> None:
        """Adds a technique with its peaks in bytes, of forward and backward and of the optimizer step.

        A technique that is added again replaces its former row, so a cell can be run twice.
        """
        self.rows[f"{self.chapter} · {technique}" if self.chapter else technique] = backward, step

    def __str__(self) -> str:
        """Returns the peaks as a table in MiB, with a verdict for each technique."""
        wide = max(map(len, self.rows), default=0)
        lines = [f"{'MiB':{wide}}  {'forward and backward':>20}  {'optimizer step':>14}  {'step peak':>9}"]
        for technique, peaks in self.rows.items():
            backward, step, highest = (f"{round(one / MiB):,}" for one in (*peaks, max(peaks)))
            fits = "fits" if max(peaks) <= self.limit else "too large"
            lines.append(f"{technique:{wide}}  {backward:>20}  {step:>14}  {highest:>9}  {fits}")
        return "\n".join(lines)

    def plot(self, about: str = "", title: str = "Two peaks per training step") -> Figure:
        """Draws two bars per technique, and a line at the memory that the card offers. ``title`` states the finding."""
        rows = list(self.rows.items())
        said = "; ".join(f"{name}: {mib(backward)} and {mib(step)}" for name, (backward, step) in rows)
        title += f", {about}" if about else ""
        alt = f"{said}. The limit is {mib(self.limit)}."
        with simulated_gpu(self.gpu):  # the figure names the chart's GPU, whichever is in use
            figure, axes = plots.new(title, alt, xlabel="MiB", height=1.2 + 0.5 * len(rows))
        for number, (label, kind) in enumerate(PEAKS.items()):
            places = [place + 0.36 * number for place in range(len(rows))]
            sizes = [peaks[number] / MiB for _, peaks in rows]
            drawn = axes.barh(places, sizes, height=0.34, color=plots.colours([kind])[kind][0], label=label)
            sizes_inside = [f"{size:,.0f} " for size in sizes]
            for place, (bar, size) in enumerate(zip(drawn, sizes_inside, strict=True)):
                pale = place < self.earlier < len(rows)  # a chart without a new row has none that is pale
                bar.set_alpha(0.4 if pale else 1)
                middle = bar.get_y() + bar.get_height() / 2
                colour = "black" if pale else "white"
                axes.text(bar.get_width(), middle, size, ha="right", va="center", fontsize=8, color=colour)
        offer = f"what a {self.gpu} offers PyTorch"  # behind the bars, so that it does not cross their numbers
        axes.axvline(self.limit / MiB, color=plots.palette.dark, lw=1, ls="--", label=offer, zorder=0.5)
        axes.set_yticks([place + 0.18 for place in range(len(rows))], [name for name, _ in rows])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.05)
        plots.legend(axes)
        return figure


def waterfall(peaks: dict[str, int], gpu: str, limit: int, about: str = "") -> Figure:
    """Draws the peak of a step in bytes under one technique after another, and what each of them saves.

    ``peaks`` has the techniques in the order in which they are added. ``limit`` is how many bytes of ``gpu`` PyTorch
    can allocate.
    """
    names, sizes = list(peaks), [size / MiB for size in peaks.values()]
    saved = [max(0.0, before - size) for before, size in pairwise(sizes)]
    alt = f"{'; '.join(f'{name}: {mib(size)}' for name, size in peaks.items())}. The limit is {mib(limit)}."
    title = "What each technique saves" + (f", {about}" if about else "")
    with simulated_gpu(gpu):
        figure, axes = plots.new(title, alt, xlabel="MiB", height=1.2 + 0.4 * len(names))
    axes.barh(names, sizes, height=0.6, color=plots.palette.blue, label="peak of the step")
    axes.barh(names[1:], saved, left=sizes[1:], height=0.6, color=plots.palette.sky, alpha=0.5, label="saved")
    for place, size in enumerate(sizes):
        axes.text(size, place, f"{size:,.0f} ", ha="right", va="center", fontsize=8, color="white")
    axes.axvline(limit / MiB, color=plots.palette.dark, lw=1, ls="--", label=f"what the {gpu} offers PyTorch")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.03)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
