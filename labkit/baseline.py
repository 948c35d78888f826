"""Prepares a clean start for a measurement, so that the GPU holds nothing the reader doesn't know of."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from labkit.living import Living, any_living, living
from labkit.units import mib

_LISTED = 12  # tensors that an error message lists


class DirtyBaseline(RuntimeError):
    """Raised when the GPU already holds memory, because what a stage adds could not be told apart from it."""


def clean_baseline(allow: int, caller: FrameType) -> int:
    """Frees everything unused on the GPU and returns the bytes that remain allocated, at most ``allow``.

    It frees outputs that the notebook has dropped, unreachable cycles, cached segments, and the cuBLAS workspaces, so
    the next matmul allocates a workspace again. Raises :class:`DirtyBaseline` if more than ``allow`` bytes remain. The
    error lists the tensors that are still alive, by the names of ``caller``'s variables. If those tensors are the
    reader's, the error is raised before cache and workspaces are freed, so it changes no later measurement.
    """
    # The variables are read before anything is counted. Up to Python 3.12 a frame keeps the copy that an earlier error
    # read, including variables deleted since then, until it is read again.
    scopes = _variables(caller), caller.f_globals
    _forget_displayed()
    # A search for cycles among the objects of all imported modules is slower than most training steps, so it runs only
    # if something is left that such cycles may hold.
    if torch.cuda.memory_allocated() and any_living():
        gc.collect()
        before = torch.cuda.memory_allocated()
        alive = living(*scopes) if before > allow else []
        if sum(one.size for one in alive) > allow:
            raise DirtyBaseline(_refusal(before, allow, alive, "the workspaces of cuBLAS, "))
    _give_back()
    if torch.cuda.memory_allocated():  # a graph's saved tensors are not Python objects
        gc.collect()
        _give_back()
    allocated = torch.cuda.memory_allocated()
    if allocated > allow:
        raise DirtyBaseline(_refusal(allocated, allow, living(*scopes)))
    return allocated


def _give_back() -> None:
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch has no public name for it
    torch.cuda.empty_cache()


def _variables(frame: FrameType) -> Mapping[str, object]:
    """Returns the local variables of a frame as a dict.

    From Python 3.13 on, a function's ``f_locals`` is a view, which does not keep the values alive.
    """
    return frame.f_locals if isinstance(frame.f_locals, dict) else dict(frame.f_locals)


def _forget_displayed() -> None:
    """Drops displayed values that the reader has deleted.

    IPython also stores each displayed value in ``user_ns_hidden``, as ``_3`` and ``_``, where neither ``del`` nor
    ``%reset out`` looks for it. It keeps the result of the last cell too.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = ipython and ipython.get_ipython()
    for name, value in list(shell.user_ns_hidden.items()) if shell else ():
        numbered = name.strip("_") == "" or name[1:].isdigit()
        if numbered and shell.user_ns.get(name) is not value:
            del shell.user_ns_hidden[name]
    last = getattr(shell, "last_execution_result", None)  # of the cell before, or of this one when it ran last
    if last is not None and all(last.result is not shown for shown in shell.user_ns.get("Out", {}).values()):
        last.result = None


def _refusal(allocated: int, allow: int, alive: list[Living], also: str = "") -> str:
    lines = [f"{mib(allocated)} are allocated before the first stage, wanted at most {mib(allow)}; alive are"]
    lines += [f"  {one}" for one in alive[:_LISTED]]
    if alive[_LISTED:]:
        rest = sum(one.size for one in alive[_LISTED:])
        lines.append(f"  and {len(alive) - _LISTED} smaller ones  {mib(rest)}")
    unseen = allocated - sum(one.size for one in alive)
    if unseen > 0:
        lines.append(
            f"  and {mib(unseen)} in no Python object: {also}what autograd saved for a backward that has not run,"
            " which goes with its output, or remainders of blocks"
        )
    lines.append(
        "Release these names (`x = None`; `%reset -f out` for Out[...] and _) and run this cell again, which also frees"
        " what the last exception holds; or restart the kernel."
        f" Ledger(allow={allocated}) accepts them as the baseline."
    )
    return "\n".join(lines)
