"""Builds, measures and draws layers whose weights are sharded over ranks (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from matplotlib.patches import Rectangle
from torch import nn

from labkit import plots
from labkit.gpu import one_rank, requested
from labkit.timing import stopwatch

if TYPE_CHECKING:
    from simgpu.distributed.kinds import Traffic

COLUMNS, ROWS, WHOLE = "columns", "rows", "whole"
"""How the matrix A of y = x · A is sharded. A Linear stores A transposed, so A's columns are its weight's rows."""


def sent(module: Callable[[], nn.Module], plan, shape: Sequence[int], of: int) -> Traffic:
    """Returns what rank 0 of `of` sends in forward and backward of a module that is sharded by a plan.

    The input is bfloat16 with this shape and requires a gradient. Iterating over the result yields each collective.
    """
    with one_rank(0, of=of) as me:
        dist.init_process_group("nccl")
        cut, x = build(module, plan), _input(shape)
        me.traffic.clear()
        cut(x).sum().backward()
    return me.traffic


def kept(module: Callable[[], nn.Module], plan, shape: Sequence[int], of: int) -> int:
    """Returns the requested bytes that the module saves for backward on rank 0 of `of`, including its input of this
    shape.
    """
    with one_rank(0, of=of):
        dist.init_process_group("nccl")
        cut, small = build(module, plan), torch.zeros(8, 8, device="cuda")
        small @ small  # allocates cuBLAS's workspace before the measurement
        before = requested()
        x = _input(shape)
        graph = cut(x).neg().grad_fn  # on a GPU, using the result waits for the collective
        return requested() - before if graph is not None else 0


def timed(module: Callable[[], nn.Module], plan, shape: Sequence[int], of: int, link: str | float | None = None) -> Any:
    """Times the second forward and backward of the module on rank 0 of `of`, with GPUs joined by a `link` (`one_rank`).

    The result has lanes on a simulated GPU. On a real one the other ranks don't exist, so communication takes no time.
    """
    with one_rank(0, of=of, link=link):
        dist.init_process_group("nccl")
        cut = build(module, plan)
        for _ in range(2):
            x = _input(shape)
            with stopwatch(lanes=True) as timing:
                cut(x).sum().backward()
    return timing


def _input(shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)


def nbytes(module: nn.Module) -> int:
    """Returns the bytes of a module's parameters on this rank."""
    parts = (one.to_local() if hasattr(one, "to_local") else one for one in module.parameters())  # pyright: ignore
    return sum(part.nbytes for part in parts)


def build(module: Callable[[], nn.Module], plan, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Builds a module, sharded by ``parallelize_module`` over all ranks, with uninitialised memory on the GPU.

    It is created on the meta device, so that no rank ever holds the whole. Raises ``RuntimeError`` without a process
    group.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError('build cuts a module among ranks: call torch.distributed.init_process_group("nccl") first')
    with torch.device("meta"):
        made = module().to(dtype)
    return parallelize_module(made, init_device_mesh("cuda", (dist.get_world_size(),)), plan).to_empty(device="cuda")


def plot(chain: Mapping[str, nn.Linear], about: str = ""):
    """Draws consecutive Linears as matrices to scale, with this rank's shard of each weight and each result.

        splits.plot({"up": mlp.up, "down": mlp.down}, "an MLP on 4 ranks")

    Raises ``ValueError`` for no layer, and ``TypeError`` for one that is not a Linear.
    """
    if not chain:
        raise ValueError("plot: a chain has one Linear or more")
    for name, layer in chain.items():
        if not isinstance(layer, nn.Linear):
            raise TypeError(f"plot draws Linears; {name!r} is of type {type(layer).__name__}")
    first = next(iter(chain.values())).weight
    mesh = getattr(first, "device_mesh", None)
    rank, ranks = (mesh.get_local_rank(), mesh.size()) if mesh is not None else (0, 1)
    matrices = _matrices(chain)
    said = "; ".join(f"{name} {how}" for name, _, _, how in matrices)
    title = f"What a rank has: {about}" if about else "What a rank has"
    figure, axes = plots.new(title, f"Rank {rank} of {ranks}, from left to right: {said}.", height=3.0)
    unit = max(max(layer.weight.shape) for layer in chain.values()) / 4
    left = 0.0
    for name, height, width, how in matrices:
        high, wide = (1.4 if height is None else height / unit), width / unit
        _draw(axes, left, high, wide, how, rank, ranks)
        what = {"sum": "a sum of parts:\nall-reduce"}.get(how, f"{how} of it" if how != WHOLE else "whole")
        axes.text(left + wide / 2, high / 2 + 0.12, name, ha="center", va="bottom", fontsize=9, fontweight="bold")
        axes.text(left + wide / 2, -high / 2 - 0.12, what, ha="center", va="top", fontsize=8)
        left += wide + 0.7
    axes.set(xlim=(-0.5, left), ylim=(-2.7, 2.5), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return figure


def _cut(weight) -> str:
    """Returns how A is sharded; `weight` is A transposed."""
    shards = [one.dim for one in getattr(weight, "placements", ()) if one.is_shard()]
    return (COLUMNS, ROWS)[shards[0]] if shards else WHOLE


def _matrices(chain: Mapping[str, nn.Linear]) -> list[tuple[str, int | None, int, str]]:
    """Returns name, height (None for the tokens), width and sharding of the input, and of each weight and result."""
    found: list[tuple[str, int | None, int, str]] = [("x", None, next(iter(chain.values())).weight.shape[1], WHOLE)]
    for name, layer in chain.items():
        outputs, inputs = layer.weight.shape
        how = _cut(layer.weight)
        found.append((name, inputs, outputs, how))
        found.append(
            (f"x · {name}" if len(found) == 2 else f"… · {name}", None, outputs, "sum" if how == ROWS else how)
        )
    return found


def _draw(axes, left: float, high: float, wide: float, how: str, rank: int, ranks: int) -> None:
    """Draws a matrix: this rank's shard blue and the others' grey, whole ones light blue, partial sums hatched."""
    box = {"ec": plots.palette.dark, "lw": 0.7}
    if how in (WHOLE, "sum"):
        hatch = "///" if how == "sum" else ""
        axes.add_patch(Rectangle((left, -high / 2), wide, high, fc=plots.palette.sky, hatch=hatch, **box))
        return
    across = how == COLUMNS
    for part in range(ranks):
        x = left + wide * part / ranks if across else left
        y = -high / 2 if across else high / 2 - high * (part + 1) / ranks
        size = (wide / ranks, high) if across else (wide, high / ranks)
        axes.add_patch(Rectangle((x, y), *size, fc=plots.palette.blue if part == rank else plots.palette.light, **box))
