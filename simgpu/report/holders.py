"""What holds the tensors of a simulated GPU that grow with each step: a list, a dictionary, or autograd's graph."""

from __future__ import annotations

import gc
import types
from collections import Counter
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.report.growth import Grown
from simgpu.storage import storage_map

ASKED = 8
"""Tensors of one origin whose containers are looked for."""


def find(grown: list[Grown], live: dict, machine) -> None:
    """Notes what holds what has grown. `live`: the blocks that are alive, by address."""
    tensors: dict[Any, list] = {one.origin: [] for one in grown}
    addresses = {address: held.origin for address, held in live.items() if held.origin in tensors}
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        for one in gc.get_objects() if addresses else ():
            if issubclass(type(one), torch.Tensor):  # isinstance would ask proxies for their class
                place = storage_map.of(one)
                block = None if place is None or place.machine is not machine else place.block
                if block is not None and block.address in addresses:
                    tensors[addresses[block.address]].append(one)
        for one in grown:
            one.holder = holder_of(tensors.pop(one.origin))


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
