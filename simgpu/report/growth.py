"""Memory that grows with each step: what is alive after successive optimizer steps, compared by the line of origin."""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.tensors import residence

STEPS = 12
"""Steps that are compared, the first ones; the states of optimizers and caches have settled long before."""

EQUAL = 3
"""Steps in a row, the last ones, in which an origin must have added equally many blocks."""

ASKED = 8
"""Tensors of one origin whose containers are looked for."""

MOST = 3
"""Origins that are named."""


@dataclass
class Grown:
    """What one line adds in each step: its origin, blocks and bytes per step, and what holds them ("" if unknown)."""

    origin: Any
    blocks: int
    nbytes: int
    holder: str = ""


@dataclass
class Growth:
    """Counts the blocks of each origin that are alive after each step."""

    _counts: list[Counter] = field(default_factory=list)

    def step(self, steps: int, live: Iterable) -> None:
        """Counts what is alive after step number `steps`."""
        if steps != len(self._counts) + 1 or steps > STEPS:
            return
        counts: Counter = Counter()
        for held in live:
            counts[held.origin, held.size] += 1
        self._counts.append(counts)

    def find(self, live: dict, machine) -> list[Grown]:
        """What each of the last steps added equally many blocks of, largest first, and what holds them now. `live`: the
        blocks that are alive, by address."""
        if len(self._counts) <= EQUAL:
            return []
        last = self._counts[-EQUAL - 1 :]
        grown = []
        for key in last[-1]:
            added = {after[key] - before[key] for before, after in pairwise(last)}
            if len(added) == 1 and (blocks := added.pop()) > 0:
                grown.append(Grown(key[0], blocks, blocks * key[1]))
        grown = sorted(grown, key=lambda one: -one.nbytes)[:MOST]
        tensors: dict[Any, list] = {one.origin: [] for one in grown}
        addresses = {address: held.origin for address, held in live.items() if held.origin in tensors}
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            for one in gc.get_objects() if addresses else ():
                if issubclass(type(one), torch.Tensor):  # isinstance would ask proxies for their class
                    place = residence.of(one)
                    block = None if place is None or place.machine is not machine else place.block
                    if block is not None and block.address in addresses:
                        tensors[addresses[block.address]].append(one)
            for one in grown:
                one.holder = holder_of(tensors.pop(one.origin))
        return grown


def holder_of(tensors: list) -> str:
    """The container that refers to most of the tensors: "a list of 12 elements", or an attribute's name."""
    if not tensors:
        return "autograd's graph, because something that was computed from them is still alive"
    found: Counter = Counter()
    for one in islice(tensors, ASKED):
        for holder in gc.get_referrers(one):
            if holder is tensors or isinstance(holder, (types.FrameType, torch.Tensor)):
                continue
            found[id(holder), _named(holder)] += 1
    if not found:
        return "autograd's graph" if any(one.grad_fn is not None for one in tensors) else ""
    (_, name), _ = found.most_common(1)[0]
    return name


def _named(holder) -> str:
    if isinstance(holder, (list, tuple, set)):
        return f"a {type(holder).__name__} of {len(holder)} elements"
    if isinstance(holder, dict):
        return f"a dict of {len(holder)} entries"
    return f"an object of type {type(holder).__name__}"
