"""What timm and torchvision need to be run alike on both sides."""

from __future__ import annotations

from contextlib import suppress

import torch

_defined: list = []


def without_operators() -> None:
    """Makes torchvision importable where its own operators, which are compiled for another build of torch, do not load.

    Only models for detection call them. On the oracle they load.
    """
    if not _defined and torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            with suppress(RuntimeError):  # they did load
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _defined.append(library)


class ByName(torch.nn.Module):
    """A model whose inputs are given by name, in the order of its arguments."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(*inputs.values())
