"""Prints which rule fired for each operator on the simulated GPU: `SIMGPU_DEBUG=ops`.

A line has the operator, the function that allocated for it, with file and line, how many bytes were allocated in and
after the call, and the stages that the call went through. The operators of which a decomposed one is made follow it,
with more indentation. The lines go to stderr.
"""

import os
import sys
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from simgpu.allocator.caching import CachingAllocator
from simgpu.dispatch import stages
from simgpu.dispatch.stages import StagedCall
from simgpu.storage.storage_map import on_gpu

VARIABLE, OPS = "SIMGPU_DEBUG", "ops"
_ROOT = Path(__file__).parents[2]


def requested() -> bool:
    """Returns whether the environment variable SIMGPU_DEBUG contains "ops", alone or in a list with commas."""
    return OPS in os.environ.get(VARIABLE, "").split(",")


class OpLog:
    """Runs operators in their stages, and prints a line for each."""

    def __init__(self, allocator: CachingAllocator):
        self._allocator = allocator
        self._depth = 0

    def run(self, mode, traits, operator, args, kwargs):
        """Runs one operator and returns its result, as `stages.run` does."""
        call = StagedCall(mode, traits, operator, args, kwargs)
        statistics = self._allocator._statistics.allocated_bytes.all
        before, kept = statistics.allocated, statistics.current
        passed = []
        self._depth += 1
        try:
            for stage in traits.stages:
                passed.append(stage.__name__)
                if stage is stages.decompose:
                    self._note_parts(call)
                if stage(call):
                    break
        finally:
            self._depth -= 1
        if passed[-1] != stages.decompose.__name__ and _on_gpu((args, kwargs, call.result)):
            what = _place(stages.rule_of(call)) or "outputs only"
            inside, after = statistics.allocated - before, statistics.current - kept
            text = f"{what}: {inside:,} B allocated, {after:+,} B after the call; {' → '.join(passed)}"
            self._print(operator, text, self._depth)
        return call.result

    def _note_parts(self, call: StagedCall) -> None:
        parts = stages.parts_of(call)
        if parts is not None and _on_gpu((call.args, call.kwargs)):
            what = _place(parts[0]) or "PyTorch's device-independent kernel"
            self._print(call.operator, f"is made of other operators by {what}", self._depth - 1)

    def _print(self, operator, text: str, depth: int) -> None:
        print(f"simgpu: {'  ' * depth}{operator.name()}  {text}", file=sys.stderr)


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
