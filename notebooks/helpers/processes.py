"""Runs functions of an importable module in real processes, as the ranks of one gloo group on this machine's CPU."""

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

    The functions must be in a module that a new process can import, like those of `helpers.proofs`. Returns a table
    with a row per proof, which holds the maximum that the ranks returned (a difference). Raises ``ValueError`` for
    fewer than one process or no proof, ``TypeError`` for a function that another process cannot import, and what a rank
    raised (as ``torch.multiprocessing.ProcessRaisedException``). A rank gives up after waiting for `seconds`.
    """
    if ranks < 1 or not proofs:
        raise ValueError(f"at least one process and one proof are wanted; ranks={ranks}, proofs={proofs} were given")
    for proof in proofs:
        if proof.__module__ == "__main__" or "<" in proof.__qualname__:
            raise TypeError(f"{proof.__qualname__} lies in no module that another process can import: put it in a file")
    with tempfile.TemporaryDirectory() as folder:
        # not spawn(), which is replaced to run one rank here while a GPU is simulated as one of many
        torch.multiprocessing.start_processes(
            _rank, (ranks, proofs, folder, seconds), ranks, start_method=_start_method()
        )
        found = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(ranks)]
    rows = {proof.__name__: max(one[at] for one in found) for at, proof in enumerate(proofs)}
    return pd.DataFrame({"processes": ranks, "largest difference": rows})


def _start_method() -> str:
    """Returns how processes start.

    On Linux all ranks are forked from one process that has imported torch and has no threads. Elsewhere each rank
    imports torch, which takes seconds.
    """
    if sys.platform != "linux":
        return "spawn"
    multiprocessing.set_forkserver_preload(["torch._dynamo", "helpers.proofs"])  # DDP imports the first
    return "forkserver"


def _rank(rank: int, ranks: int, proofs: tuple[Proof, ...], folder: str, seconds: float) -> None:
    """Joins the process group as one rank, runs the proofs, and stores their results in the folder."""
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
