"""Real processes: functions of an importable module, run as the ranks of one gloo group on this machine's CPU."""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing

Proof = Callable[[int, int], float]


def run(ranks: int, *proofs: Proof, seconds: float = 1800) -> pd.DataFrame:
    """Starts `ranks` processes once, and each calls every proof as ``proof(rank, ranks)``.

    The functions must lie in a module that a new process can import, as those of `labkit.proofs` do. The table has a
    row for each proof: the largest of what the ranks returned, a difference. Raises ``ValueError`` for fewer than one
    process or no proof, ``TypeError`` for a function that another process cannot find, and what a rank raised (as
    ``torch.multiprocessing.ProcessRaisedException``); a rank that hears nothing for `seconds` gives up.
    """
    if ranks < 1 or not proofs:
        raise ValueError(f"at least one process and one proof are wanted; ranks={ranks}, proofs={proofs} were given")
    for proof in proofs:
        if proof.__module__ == "__main__" or "<" in proof.__qualname__:
            raise TypeError(f"{proof.__qualname__} lies in no module that another process can import: put it in a file")
    with tempfile.TemporaryDirectory() as folder:
        # not spawn(), which runs one rank of a world here while a GPU is simulated as one of many
        torch.multiprocessing.start_processes(
            _rank, (ranks, proofs, folder, seconds), ranks, start_method=_start_method()
        )
        found = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(ranks)]
    rows = {proof.__name__: max(one[at] for one in found) for at, proof in enumerate(proofs)}
    return pd.DataFrame({"processes": ranks, "largest difference": rows})


def _start_method() -> str:
    """On Linux all ranks are forked from one process that has imported torch and has no threads; elsewhere each imports
    it, which takes seconds."""
    if sys.platform != "linux":
        return "spawn"
    multiprocessing.set_forkserver_preload(["torch._dynamo", "labkit.proofs"])  # DDP imports the first
    return "forkserver"


def _rank(rank: int, ranks: int, proofs: tuple[Proof, ...], folder: str, seconds: float) -> None:
    """A process's life."""
    from datetime import timedelta

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))
    try:
        torch.save([proof(rank, ranks) for proof in proofs], Path(folder, f"{rank}.pt"))
        dist.barrier()
    finally:
        dist.destroy_process_group()
