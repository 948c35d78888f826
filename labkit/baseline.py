"""A clean start for a measurement: nothing on the GPU that the reader does not know of."""

from __future__ import annotations

import gc

import torch

from labkit.living import living
from labkit.units import mib

_LISTED = 12  # living tensors that a refusal shows


class DirtyBaseline(RuntimeError):
    """The GPU already holds memory, so what a stage adds could not be told from what was there."""


def clean_baseline(allow: int, names: dict[str, object]) -> int:
    """The bytes allocated once everything unused is given back, if they are at most ``allow``.

    Given back are unreachable cycles, cached segments and the cuBLAS workspaces (so the next matrix
    multiplication takes one again). Otherwise raises :class:`DirtyBaseline`, which says what still lives;
    ``names`` are the caller's variables.
    """
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch has no public name for it
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated()
    if allocated > allow:
        raise DirtyBaseline(_refusal(allocated, allow, names))
    return allocated


def _refusal(allocated: int, allow: int, names: dict[str, object]) -> str:
    alive = living(names)
    lines = [f"{mib(allocated)} are allocated before the first stage, wanted at most {mib(allow)}; alive are"]
    lines += [f"  {one}" for one in alive[:_LISTED]]
    if alive[_LISTED:]:
        rest = sum(one.size for one in alive[_LISTED:])
        lines.append(f"  and {len(alive) - _LISTED} smaller ones  {mib(rest)}")
    unseen = allocated - sum(one.size for one in alive)
    if unseen > 0:
        lines.append(
            f"  and {mib(unseen)} in no Python object: what autograd saved for a backward that has not run,"
            " which goes with its output, or remainders of blocks"
        )
    lines.append(
        "Delete these names (`del`; `%reset -f out` for Out[...] and _) and run this cell again, or restart"
        f" the kernel. Ledger(allow={allocated}) accepts them as the baseline."
    )
    return "\n".join(lines)
