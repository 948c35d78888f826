"""Prints which rule fired for each operator on the simulated GPU: `SIMGPU_DEBUG=ops`.

A line has the operator, the function that allocated for it, with file and line, and how many bytes were allocated in
and after the call. The operators of which a decomposed one is made follow it, with more indentation. The lines go to
stderr.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from simgpu.allocator.caching import CachingAllocator
from simgpu.ops import decomposition_of
from simgpu.storage.storage_map import on_gpu

VARIABLE, OPS = "SIMGPU_DEBUG", "ops"
_ROOT = Path(__file__).parents[2]


def requested() -> bool:
    """Returns whether the environment variable SIMGPU_DEBUG contains "ops", alone or in a list with commas."""
    return OPS in os.environ.get(VARIABLE, "").split(",")


class OpLog:
    """Runs operators by `run`, the dispatch mode's own method, and prints a line for each."""

    def __init__(self, run: Callable, allocator: CachingAllocator):
        self._run, self._allocator = run, allocator
        self._depth = 0

    def run(self, traits, operator, args, kwargs):
        """Runs one operator and returns its results. It is called as `DispatchMode.run`."""
        made_of = decomposition_of(operator, args, kwargs) if traits.may_be_decomposed else None
        if made_of is not None and _on_gpu((args, kwargs)):
            what = _place(made_of[0]) or "PyTorch's device-independent kernel"
            self._print(operator, f"is made of other operators by {what}")
        statistics = self._allocator._statistics.allocated_bytes.all
        before, kept = statistics.allocated, statistics.current
        self._depth += 1
        try:
            result = self._run(traits, operator, args, kwargs)
        finally:
            self._depth -= 1
        if made_of is None and _on_gpu((args, kwargs, result)):
            what = _place(traits.rule) or "outputs only"
            inside, after = statistics.allocated - before, statistics.current - kept
            self._print(operator, f"{what}: {inside:,} B allocated, {after:+,} B after the call")
        return result

    def _print(self, operator, text: str) -> None:
        print(f"simgpu: {'  ' * self._depth}{operator.name()}  {text}", file=sys.stderr)


def _on_gpu(values) -> bool:
    """Returns whether a simulated tensor of the GPU is among these arguments and results."""
    return any(isinstance(one, torch.Tensor) and on_gpu(one) for one in pytree.tree_leaves(values))


def _place(function) -> str:
    """Returns a function's name, file and line; "" for None."""
    code = getattr(function, "__code__", None)
    if code is None:
        return "" if function is None else str(function)
    file = Path(code.co_filename)
    shown = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    return f"{function.__qualname__} ({shown}:{code.co_firstlineno})"
