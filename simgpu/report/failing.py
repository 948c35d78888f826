"""Finds what a program was doing when an allocation failed, from its stack."""

import torch
from torch.utils._python_dispatch import _disable_current_modes


def model_of(frame) -> tuple[bool, int]:
    """Returns whether a stack builds or moves a module, and the bytes of the outermost module that it moves, or 0."""
    building, nbytes = False, 0
    while frame is not None:
        if frame.f_code is torch.nn.Module._apply.__code__:
            building = True
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                tensors = (*frame.f_locals["self"].parameters(), *frame.f_locals["self"].buffers())
                nbytes = sum(one.numel() * one.element_size() for one in tensors)
        elif frame.f_code.co_name == "__init__" and isinstance(frame.f_locals.get("self"), torch.nn.Module):
            building = True
        frame = frame.f_back
    return building, nbytes
