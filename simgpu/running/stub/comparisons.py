"""Comparisons of computed values on the stub engine, `torch.allclose` and `assert_close`, which are taken to hold.

Kernels compute nothing, so a program that checks its results would end at the first check. The comparison runs, with
what it allocates, and its answer is yes where one of the tensors is not known. The page lists the lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from simgpu.running.stub.known import Known


def taken_to_hold(torch: Any, known: Known, noted: Callable[[], None]) -> None:
    """Replaces the functions. `noted()` is called for each comparison whose answer is not computed."""
    import torch.testing._comparison as comparison

    def unknown(*tensors: Any) -> bool:
        on_gpu = [one for one in tensors if isinstance(one, torch.Tensor) and one.is_cuda]
        return bool(on_gpu) and any(known.of(one) is None for one in on_gpu)

    def replace(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def compared(*args, **kwargs):
            if not unknown(*args, *kwargs.values()):
                return real(*args, **kwargs)
            noted()
            try:
                with known.read_of(True):
                    result = real(*args, **kwargs)
            except (AssertionError, comparison.ErrorMeta):
                return None
            return True if result is False else result

        setattr(owner, name, compared)

    replace(torch, "allclose")
    replace(torch.Tensor, "allclose")
    replace(comparison.TensorLikePair, "_compare_regular_values_close")
