"""Plain PyTorch on many GPUs, of which one rank runs: `ranks_fsdp2_7of8` is FSDP2 as the last of 8.

A workload has the attributes `rank` and `ranks`: whoever runs it sees to it that `init_process_group("nccl")` makes
that rank of it (`simgpu.stub.rank` on the oracle, `simulated_gpu(ranks=..., rank=...)` on the simulated GPU).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import torch
from torch import distributed as dist

from simgpu.recording.provenance import digest
from tools.oracle.workloads.ranks import (
    collectives,
    data_parallel,
    model,
    pipelines,
    tensor_parallel,
    ways_of_ddp,
    ways_of_fsdp1,
)

PREFIX = "ranks_"
KINDS = collectives.KINDS | data_parallel.KINDS | tensor_parallel.KINDS | pipelines.KINDS | ways_of_ddp.KINDS
KINDS |= ways_of_fsdp1.KINDS
LEAST = {
    "hsdp": 2,
    "fsdp1_hybrid": 2,
    "fsdp1_hybrid_grad_op": 2,
    "fsdp2_resharded_to_two": 8,
    "ddp_tp": 2,
    "fsdp2_tp": 2,
    "fsdp2_tp_sequence_bf16": 2,
    "three_dimensions": 4,
    "neighbours": 2,
}
PLACES = ((0, 1), (0, 2), (1, 2), (0, 8), (3, 8), (7, 8))  # rank, ranks
IMPORTS = (  # what they use, which is imported once for all of them
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.parallel",
)


def joined(stage, of, **options) -> None:
    """Runs one of them as the rank that this process is, and lets go of the others."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    try:
        of(stage, **options)
    finally:
        dist.destroy_process_group()


def find(name: str) -> Callable | None:
    """The workload of that name, with its `rank` and `ranks`, any rank of any number; None for another name."""
    kind, _, place = name.removeprefix(PREFIX).rpartition("_")
    rank, of, ranks = place.partition("of")
    if not (name.startswith(PREFIX) and kind in KINDS and of and rank.isdigit() and ranks.isdigit()):
        return None
    if not int(rank) < int(ranks):
        raise KeyError(f"{name}: of {ranks} ranks the last one is {int(ranks) - 1}")
    function, options = KINDS[kind]
    workload = partial(joined, of=function, **options)
    workload.rank, workload.ranks = int(rank), int(ranks)
    workload.source = f"{digest(function)} {digest(model.train)}"
    return workload


def named() -> dict[str, Callable]:
    """All of them: the first rank, the last one and one between, alone, of two and of eight."""
    names = [
        f"{PREFIX}{kind}_{rank}of{ranks}" for kind in KINDS for rank, ranks in PLACES if ranks >= LEAST.get(kind, 1)
    ]
    return {name: find(name) for name in names}


WORKLOADS = named()
