"""Records moment by moment which of a model's layers FSDP2 holds as shards, whole, or in the process of gathering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from matplotlib.patches import Patch, Rectangle
from torch import nn

from labkit import plots
from labkit.gpu import current, unmodeled
from labkit.units import MiB

SHARD, WHOLE, COMING = "shard", "whole", "coming"
"""A rank has only its shard; or all shards; or the others' are being gathered into a separate buffer."""


@dataclass(frozen=True)
class Moment:
    """One moment of a step: the state of each layer ("shard", "whole" or "coming"), and the bytes allocated."""

    name: str
    layers: Mapping[str, str]
    allocated: int


class Moments:
    """Records the state of each layer when a layer's forward and backward begin, and when the caller calls ``note``.

    >>> moments = Moments(a=net.a, b=net.b, c=net.c)     # after fully_shard
    >>> net(x).sum().backward()
    >>> moments.note("end")
    >>> moments.table()
    >>> moments.plot("three Linear layers")

    It uses hooks on the layers, which must have been passed to ``fully_shard`` and return a tensor. ``stop()`` removes
    the hooks and releases the layers. Raises ``ValueError`` for a layer that FSDP2 does not shard.
    """

    def __init__(self, **layers: nn.Module):
        self.noted: list[Moment] = []
        self._layers = {name: _group(name, layer) for name, layer in layers.items()}
        group = next(iter(self._layers.values()))
        mesh: Any = group.mesh_info
        self.rank, self.ranks = mesh.shard_mesh_rank, mesh.shard_mesh_size
        self._hooks = []
        for name, layer in layers.items():
            self._hooks += [
                layer.register_forward_pre_hook(lambda *_, name=name: self.note(f"forward {name}")),
                layer.register_forward_hook(lambda *given, name=name: self._then_backward(given[-1], name)),
            ]

    def note(self, name: str) -> None:
        """Records this moment under a name."""
        layers = {layer: _is(group) for layer, group in self._layers.items()}
        self.noted.append(Moment(name, layers, torch.cuda.memory_allocated()))

    def stop(self) -> None:
        """Removes the hooks and releases the layers; what was recorded stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._layers = [], {}

    def table(self) -> pd.DataFrame:
        """Returns a row per moment: the state of each layer, and the MiB allocated."""
        rows = [{**one.layers, "allocated (MiB)": one.allocated / MiB} for one in self.noted]
        frame = pd.DataFrame(rows, index=[one.name for one in self.noted])
        frame.index.name = frame.attrs["gpu"] = " · ".join(filter(None, (str(current()), unmodeled())))
        return frame

    def plot(self, about: str = ""):
        """Draws a column per moment and a row per layer, with a box for each rank's shard."""
        names, ranks = list(self.noted[0].layers) if self.noted else [], self.ranks
        said = [
            f"{one.name}: " + (", ".join(f"{n} {kind}" for n, kind in one.layers.items() if kind != SHARD) or "shards")
            for one in self.noted
        ]
        title = f"What rank {self.rank} of {ranks} holds" + (f": {about}" if about else "")
        figure, axes = plots.new(title, "; ".join(said) + ".", height=1.2 + 0.55 * len(names))
        for x, one in enumerate(self.noted):
            for y, name in enumerate(names):
                for shard in range(ranks):
                    self._box(axes, x, y, shard, name, one.layers[name])
        axes.set(xlim=(-0.1, len(self.noted)), ylim=(len(names), -0.1))
        axes.set_xticks([x + 0.45 for x in range(len(self.noted))], [one.name.replace(" ", "\n") for one in self.noted])
        axes.set_yticks([y + 0.4 for y in range(len(names))], names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        looks = {
            "own shard": (plots.palette.blue, ""),
            "gathered": (plots.palette.sky, ""),
            "being gathered": ("white", "////"),
        }
        handles = [
            Patch(fc=fill, hatch=hatch, ec=plots.palette.dark, label=said) for said, (fill, hatch) in looks.items()
        ]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
        return figure

    def _box(self, axes, x: int, y: int, shard: int, name: str, kind: str) -> None:
        mine, wide = shard == self.rank, 0.9 / self.ranks
        fill = plots.palette.blue if mine else plots.palette.sky if kind == WHOLE else "white"
        hatch = "////" if kind == COMING and not mine else ""
        edge = plots.palette.dark if mine or kind != SHARD else plots.palette.light
        axes.add_patch(Rectangle((x + shard * wide, y), wide, 0.8, fc=fill, ec=edge, hatch=hatch, lw=0.7))
        if self.ranks <= 4 and (mine or kind != SHARD):
            ink = "white" if mine else plots.palette.dark
            at = x + (shard + 0.5) * wide, y + 0.4
            patch = {"fc": "white", "ec": "none", "pad": 0.8} if hatch else None  # text on hatching is not legible
            axes.text(*at, f"{name}{shard}", ha="center", va="center", fontsize=7, color=ink, bbox=patch)

    def _then_backward(self, output: torch.Tensor, name: str) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self.note(f"backward {name}"))


def _group(name: str, layer: nn.Module):
    """Returns FSDP2's parameter group of the layer (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)."""
    from torch.distributed.fsdp import FSDPModule

    group = layer._get_fsdp_state()._fsdp_param_group if isinstance(layer, FSDPModule) else None
    if group is None:
        raise ValueError(f"layer {name} has no parameters that FSDP2 shards: give it to fully_shard first")
    return group


def _is(group) -> str:
    if group.is_unsharded:
        return WHOLE
    return COMING if group._all_gather_result is not None else SHARD
