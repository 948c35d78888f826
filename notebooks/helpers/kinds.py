"""The six kinds of memory over a training step, from a ledger's memory history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from labkit import plots
from labkit.formulas import block, cublas_workspace
from labkit.ledger import Ledger
from labkit.units import MiB, mib

KINDS = ("weights", "optimizer states", "gradients", "workspaces", "activations", "temporaries")


@dataclass(frozen=True)
class Lived:
    """A block of the history: its kind, its bytes, and the events that made it and freed it."""

    kind: str
    size: int
    born: int
    freed: int


class Kinds:
    """Each block of a training step, given one of the six kinds of memory.

    >>> kinds = Kinds(ledger, model, optimizer, "forward 2", "backward 2", "optimizer 2")
    >>> kinds.at_peak()

    The ledger has ``history=True`` and began on an empty GPU; the three names are those of its stages, and model,
    gradients and optimizer are as the last stage left them. Weights are parameters and buffers. Activations are what
    forward made, or was given, and backward found: what autograd keeps, and what the caller holds. Workspaces are
    cuBLAS's, which stay. Whatever else comes and goes is temporary. Remainders of blocks are not in the history, so the
    sum is that much below ``memory_allocated``. Raises ``RuntimeError`` without history.
    """

    def __init__(self, ledger: Ledger, model: nn.Module, optimizer, forward: str, backward: str, step: str):
        self.start, self.backward, self.end = ledger.span(forward)[0], ledger.span(backward), ledger.span(step)[1]
        self._held = _held(model, optimizer)
        self._workspace = cublas_workspace(torch.cuda.get_device_capability())
        self.blocks = list(self._lifetimes(ledger.trace[: self.end]))
        self.curves = self._curves()

    @property
    def total(self) -> np.ndarray:
        """Bytes of all kinds after each event of the step."""
        return sum(self.curves.values(), np.zeros(self.end - self.start + 1, dtype=np.int64))

    @property
    def moment(self) -> int:
        """The event at which the step's memory is highest, counted from the step's first."""
        return int(self.total.argmax())

    @property
    def peak(self) -> int:
        """Bytes at that moment, without remainders."""
        return int(self.total[self.moment])

    def at_peak(self) -> dict[str, int]:
        """Bytes of each kind at the peak."""
        return {kind: int(curve[self.moment]) for kind, curve in self.curves.items()}

    def alive_at_peak(self, kind: str) -> pd.DataFrame:
        """The blocks of a kind that are alive at the peak, by size: how many, and how long they live, in events."""
        at = self.start + self.moment
        alive = [one for one in self.blocks if one.kind == kind and one.born <= at < one.freed]
        rows = {}
        for size in sorted({one.size for one in alive}, reverse=True):
            lives = [one.freed - one.born for one in alive if one.size == size]
            rows[str(mib(size))] = (len(lives), min(lives), max(lives))
        columns = ["blocks", "shortest life (events)", "longest life (events)"]
        return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis(kind)

    def plot(self, about: str = "", title: str = "The six kinds of allocated memory"):
        """Stack the six kinds over the step's events, with backward shaded and the peak marked."""
        first, last = self.backward
        return stack(
            {kind: curve.tolist() for kind, curve in self.curves.items()},
            f"{title}: {about}" if about else title,
            xlabel="event of the allocator in the step",
            shaded={"backward": (first - self.start, last - self.start)},
        )

    def _lifetimes(self, trace):
        """Each block of the history, with its kind."""
        alive: dict[int, tuple[int, int]] = {}
        for number, event in enumerate(trace, 1):
            if event["action"] == "alloc":
                alive[event["addr"]] = block(event["size"]), number
            elif event["action"] == "free_requested":
                size, born = alive.pop(event["addr"])
                yield Lived(self._kind(None, size, born, number), size, born, number)
        never = len(trace) + 1
        for address, (size, born) in alive.items():
            yield Lived(self._kind(address, size, born, never), size, born, never)

    def _kind(self, address: int | None, size: int, born: int, freed: int) -> str:
        """The kind of a block; ``address`` only of one that was never freed, since blocks are used again."""
        if address in self._held:
            return self._held[address]
        if address is not None and size == self._workspace:
            return "workspaces"
        return "activations" if born <= self.backward[0] < freed else "temporaries"

    def _curves(self) -> dict[str, np.ndarray]:
        """Bytes of each kind after each event, from the step's first to its last."""
        changes = {kind: np.zeros(self.end + 2, dtype=np.int64) for kind in KINDS}
        for one in self.blocks:
            changes[one.kind][one.born] += one.size
            changes[one.kind][one.freed] -= one.size
        return {kind: change.cumsum()[self.start : self.end + 1] for kind, change in changes.items()}


def _held(model: nn.Module, optimizer) -> dict[int, str]:
    """The kind of what model and optimizer hold on the GPU, by address."""
    states = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    groups = {"gradients": gradients, "optimizer states": states, "weights": [*model.parameters(), *model.buffers()]}
    tensors = ((kind, tensor) for kind, group in groups.items() for tensor in group if tensor.is_cuda)
    return {tensor.untyped_storage().data_ptr(): kind for kind, tensor in tensors}


def stack(
    curves: Mapping[str, Sequence[int]],
    title: str,
    xlabel: str,
    shaded: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Bytes over events as stacked areas, ``{part: values}``, with the highest sum marked and ranges shaded by name.

    A part has the colour of its kind, which its name contains. Raises ``ValueError`` for curves of different lengths,
    or for parts that cannot be distinguished.
    """
    if len({len(values) for values in curves.values()}) != 1:
        raise ValueError(f"curves to stack have one length; these have {[len(v) for v in curves.values()]}")
    total = [sum(values) for values in zip(*curves.values(), strict=True)]
    peak = max(range(len(total)), key=total.__getitem__)
    said = ", ".join(f"{name} {mib(values[peak])}" for name, values in curves.items())
    alt = f"The sum is highest at {xlabel} {peak} of {len(total) - 1}, {mib(total[peak])}: {said}."
    figure, axes = plots.new(title, alt, xlabel=xlabel, ylabel="MiB", height=3.8)
    look = plots.colours(list(curves))
    layers = [[value / MiB for value in values] for values in curves.values()]
    filled = axes.stackplot(range(len(total)), layers, labels=list(curves), step="post", lw=0)
    for area, (fill, hatch) in zip(filled, look.values(), strict=True):
        area.set(facecolor=fill, hatch=hatch, edgecolor="white")
    top = max(total[peak] / MiB, 1e-9)
    axes.axvline(peak, color=plots.palette.dark, lw=1, ls=":")
    axes.text(peak, top * 1.03, f" peak {mib(total[peak])}", fontsize=8, va="bottom")
    for name, (first, last) in (shaded or {}).items():
        axes.axvspan(first, last, color=plots.palette.grey, alpha=0.15, lw=0, zorder=0)
        axes.text((first + last) / 2, top * 0.93, name, ha="center", fontsize=8)
    axes.set(xlim=(0, max(len(total) - 1, 1)), ylim=(0, top * 1.15))
    plots.legend(axes, axes.get_legend_handles_labels()[0][::-1])  # as they are stacked
    return figure
