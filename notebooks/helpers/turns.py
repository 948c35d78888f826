"""Runs one process as each rank of N in turn, and combines what the ranks held, sent and did."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from helpers import schedules
from labkit.gpu import current, one_rank, simulated_gpu
from labkit.ledger import Ledger
from labkit.units import MiB

CLOCK = "A100-80GB"  # the GPU whose clock plays the ranks when the machine's own GPU, a real one, counts the bytes


@dataclass(eq=False)
class Turn:
    """One rank's turn: `rank` of `ranks`, and its `traffic` in the process group.

    The other fields describe the last step that `measured` recorded, in bytes: allocated `before` and `after` it, its
    allocated `peak`, and what it `sent`. `sends` counts the messages among that.
    """

    rank: int
    ranks: int
    traffic: Any
    before: int = 0
    peak: int = 0
    after: int = 0
    sent: int = 0
    sends: int = 0
    _log: Any = field(default=None, repr=False)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures one step's memory, its traffic and, on a simulated GPU, its log. A later step replaces it."""
        self.traffic.clear()
        self.before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with _logging() as self._log:
            yield
        self.peak, self.after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        self.sent, self.sends = self.traffic.sent, self.traffic["send"].count


@dataclass(eq=False)
class InTurn:
    """Holds what all ranks did in their turns.

    `turns[rank]` is a `Turn`, and `timeline` combines their steps (`simgpu.together`).
    """

    turns: list[Turn]
    timeline: Any

    @property
    def memory(self) -> pd.DataFrame:
        """Returns a row per rank: MiB allocated before the step, its allocated peak, MiB sent, and messages."""
        rows = [(one.before / MiB, one.peak / MiB, one.sent / MiB, one.sends) for one in self.turns]
        columns = ["allocated before", "peak", "sent", "messages"]
        return pd.DataFrame(rows, columns=columns, index=[f"rank {one.rank}" for one in self.turns])

    @property
    def peaks(self) -> list[int]:
        """Returns the allocated peak of each rank's step, in bytes."""
        return [one.peak for one in self.turns]

    @property
    def ms(self) -> float:
        """Returns the milliseconds from the first kernel of any rank to the last."""
        start, end = self.timeline.span
        return 1e3 * (end - start)

    @property
    def bubble(self) -> float:
        """Returns the idle share of that time, over all ranks."""
        return self.timeline.bubble

    def in_flight(self, rank: int) -> int:
        """Returns the most micro-batches, of any stage, that the rank has begun and not ended."""
        now = most = 0
        for stretch in self.timeline.of(rank):
            now += {"forward": 1, "backward": -1}.get(stretch.piece.kind, 0)
            most = max(most, now)
        return most

    def plot(self, about: str = "") -> Figure:
        """Draws the schedule (`helpers.schedules.schedule`)."""
        with _clock():
            return schedules.schedule(self.timeline, about)


def in_turn(work: Callable[[Turn], object], ranks: int, link: str | float | None = None) -> InTurn:
    """Calls ``work(turn)`` as rank 0 of `ranks`, then as rank 1, ..., each with an empty GPU and a process group.

        def work(turn):
            schedule = ...                       # what rank turn.rank builds
            with turn.measured():
                schedule.step(...)
        in_turn(work, 4).memory

    `link` is that of `labkit.one_rank`. A real GPU counts the bytes, and then all ranks run once more on a simulated
    A100 80GB for the timeline, because one GPU cannot measure the others' time. Raises
    :class:`labkit.live_tensors.DirtyBaseline` if tensors are alive on the GPU, ``RuntimeError`` if `work` measures
    nothing, and what `simgpu.together` raises.
    """
    turns = _all(work, ranks, link)
    timed = turns
    if not current().simulated:
        with _clock():
            timed = _all(work, ranks, link)
    import simgpu

    return InTurn(turns, simgpu.together(one._log for one in timed))


def side_by_side(runs: Mapping[str, InTurn]) -> pd.DataFrame:
    """Returns a row per rank and a column per run, with the allocated peak in MiB and the micro-batches in flight."""
    columns = {
        name: [f"{peak / MiB:,.0f} ({one.in_flight(rank)})" for rank, peak in enumerate(one.peaks)]
        for name, one in runs.items()
    }
    ranks = len(next(iter(runs.values())).turns)
    return pd.DataFrame(columns, index=[f"rank {rank}" for rank in range(ranks)]).rename_axis("MiB (in flight)")


def _all(work: Callable[[Turn], object], ranks: int, link: str | float | None) -> list[Turn]:
    Ledger()  # frees the cache and unreachable cycles, and refuses a GPU that is not empty
    turns = []
    gc.freeze()  # existing objects are not searched again for each rank
    try:
        for rank in range(ranks):
            with one_rank(rank, of=ranks, link=link) as me:
                torch.distributed.init_process_group("nccl")
                turn = Turn(rank, ranks, me.traffic)
                work(turn)
            _emptied()
            if not turn.peak:
                raise RuntimeError(f"rank {rank} measured nothing: `with turn.measured():` goes around a step")
            turns.append(turn)
    finally:
        gc.unfreeze()
    return turns


def _emptied() -> None:
    gc.collect()  # a schedule and its stages refer to each other
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch has no public name for it
    torch.cuda.empty_cache()


def _clock():
    return nullcontext() if current().simulated else simulated_gpu(CLOCK)


@contextmanager
def _logging() -> Iterator[Any]:
    if not current().simulated:
        yield None
        return
    import simgpu

    with simgpu.record_rank() as log:
        yield log


def bubble(ranks: int, micro_batches: int, stages: int = 1) -> float:
    """Returns the idle share of a pipeline, (P - 1) / (V M + P - 1).

    P is `ranks`, M the number of equal micro-batches, and V the number of equal `stages` per rank; links take no time
    (Huang et al., GPipe, 2019; Narayanan et al., 2021, 2.2.2, divide by the time of the work alone). Raises
    ``ValueError`` for a number below 1.
    """
    for name, number in (("ranks", ranks), ("micro_batches", micro_batches), ("stages", stages)):
        if not number >= 1:
            raise ValueError(f"{name}={number}: a pipeline has one or more")
    return (ranks - 1) / (stages * micro_batches + ranks - 1)
