"""Runs PyTorch as one rank of N on the stub libraries: NCCL's own process group, under a stub of NCCL.

A program calls `dist.init_process_group("nccl")` as `torchrun` would have it: the environment has its variables, the
rendezvous returns at once, and every key that this rank waits for in the store exists. The other ranks do not run. The
stub of NCCL (`sources/libnccl.c`) decides what is received. PyTorch is patched in two places only: the rendezvous, and
the product of two votes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

import torch
from torch import distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from simgpu.stub import world

ID = bytes(128)  # of a communicator, as rank 0 would have put it into the store
A_ROUND = 0.25  # seconds: the watchdog of ProcessGroupNCCL looks at what has ended every 0.1 s


class Alone(dist.Store):
    """A store that has every key: a key that this rank did not set holds an empty communicator's id, and a counter
    says that all ranks have come."""

    def __init__(self, ranks: int):
        super().__init__()
        self.ranks = ranks
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value) -> None:
        self.kept[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self.kept.get(key, ID)

    def add(self, key: str, amount: int) -> int:
        return self.ranks * amount

    def compare_set(self, key: str, expected, desired) -> bytes:
        self.set(key, desired)
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.kept for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.kept.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self.kept)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Returns at once."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Returns at once."""


def _with_votes(runtime: ctypes.CDLL) -> Callable:
    """`Tensor.__mul__`, which also multiplies two remembered votes: the first step of a pipeline does it on the GPU,
    where kernels do nothing, and then reads the result."""
    multiply, to_device = torch.Tensor.__mul__, 1  # cudaMemcpyHostToDevice

    def product(one, other):
        result = multiply(one, other)
        if isinstance(other, torch.Tensor) and {one.dtype, other.dtype} == {torch.int32} and one.numel() == 1:
            votes = [ctypes.c_int32(), ctypes.c_int32()]
            known = [
                runtime.mock_recall(ctypes.byref(vote), ctypes.c_void_p(factor.data_ptr()), ctypes.c_size_t(4))
                for vote, factor in zip(votes, (one, other), strict=True)
            ]
            vote = ctypes.c_int32(votes[0].value * votes[1].value)
            if all(known):
                place = ctypes.c_void_p(result.data_ptr())
                runtime.cudaMemcpy(place, ctypes.byref(vote), ctypes.c_size_t(4), to_device)
        return result

    return product


@contextmanager
def rank_of(rank: int, ranks: int, per_node: int = 1) -> Iterator[None]:
    """Inside, `init_process_group("nccl")` makes this process rank `rank` of `ranks`, with `per_node` of them, and as
    many GPUs, on a machine. `torch.multiprocessing.spawn` calls its function once, here, as that rank's process.

    Small copies to the device are remembered, so that what the program wrote there it reads back (DDP does).
    """
    runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # pyright: ignore[reportOptionalMemberAccess]
    if not hasattr(runtime, "mock_remember"):
        raise RuntimeError("the stub libraries are older than this: python -m tools.oracle build")
    variables = world.variables(rank, ranks, per_node)
    store = Alone(ranks)  # C++ does not keep what is Python's of it

    def met(*_, **__):
        yield store, rank, ranks

    def spawn(fn, args=(), *_, **__):
        fn(rank % per_node, *args)

    runtime.mock_remember(1)
    with (
        patch.dict(os.environ, variables),
        patch.object(torch.multiprocessing, "spawn", spawn),
        patch.dict(_rendezvous_handlers, dict.fromkeys(("env", "tcp", "file"), met)),
        patch.object(torch.Tensor, "__mul__", _with_votes(runtime)),
    ):
        try:
            yield
        finally:
            runtime.mock_remember(0)
            if dist.is_initialized():
                dist.destroy_process_group()


def unhurried(workload: Callable) -> Callable:
    """The workload, with a pause at each stage in which NCCL's watchdog notes what has ended.

    Until then the process group holds the tensors of collectives that no one waits for by their handle, such as DDP's
    buckets. A step on a GPU takes longer than the watchdog's round, and one on the oracle does not.
    """

    def paused(stage: Callable[[str], None]) -> object:
        def after_a_round(name: str) -> None:
            time.sleep(A_ROUND)
            stage(name)

        return workload(after_a_round)

    return paused
