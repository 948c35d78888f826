"""Ranks in turn: one process is each rank of N, one after the other; what they held, sent and did is put together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from labkit import schedules
from labkit.gpu import simulated_gpu, simulator_is_on
from labkit.ledger import Ledger
from labkit.plots import Drawing
from labkit.ranks import one_rank
from labkit.units import MIB

CLOCK = "A100-80GB"  # whose clock the ranks are played on where the machine's own GPU, a real one, counts the bytes


@dataclass(eq=False)
class Turn:
    """One rank's turn: `rank` of `ranks`, and its `traffic`, of the process group.

    Of the step that `measured` saw last, in bytes: allocated `before` and `after` it, the allocated `peak` in it, and
    `sent`; `sends`: the messages among what was sent.
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
        """Around one step: its memory, its traffic and, on a simulated GPU, its log. A later step replaces it."""
        self.traffic.clear()
        self.before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with _logging() as self._log:
            yield
        self.peak, self.after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        self.sent, self.sends = self.traffic.sent, self.traffic["send"].count


@dataclass(eq=False)
class InTurn:
    """What all ranks did in their turns. `turns[rank]`: a `Turn`; `timeline`: their steps, played against each other
    (`simgpu.together`)."""

    turns: list[Turn]
    timeline: Any

    @property
    def memory(self) -> pd.DataFrame:
        """A row for each rank: allocated before the step, and its allocated peak, in MiB; MiB sent, and messages."""
        rows = [(one.before / MIB, one.peak / MIB, one.sent / MIB, one.sends) for one in self.turns]
        columns = ["allocated before", "peak", "sent", "messages"]
        return pd.DataFrame(rows, columns=columns, index=[f"rank {one.rank}" for one in self.turns])

    @property
    def peaks(self) -> list[int]:
        """The allocated peak of each rank's step, in bytes."""
        return [one.peak for one in self.turns]

    @property
    def ms(self) -> float:
        """From the first rank's first kernel to the last one's last, in ms."""
        start, end = self.timeline.span
        return 1e3 * (end - start)

    @property
    def bubble(self) -> float:
        """The share of that time in which ranks are idle, over all ranks."""
        return self.timeline.bubble

    def plot(self, about: str = "") -> Drawing:
        """The figure of the schedule (`labkit.schedules.schedule`)."""
        with _clock():
            return schedules.schedule(self.timeline, about)


def in_turn(work: Callable[[Turn], object], ranks: int, link: str | float | None = None) -> InTurn:
    """Calls ``work(turn)`` as rank 0 of `ranks`, then as rank 1, ..., each with an empty GPU and a process group.

        def work(turn):
            schedule = ...                       # what rank turn.rank builds
            with turn.measured():
                schedule.step(...)
        in_turn(work, 4).memory

    `link`: as of `labkit.one_rank`. Where the GPU is a real one it counts the bytes, and then all ranks run once more
    on a simulated A100 80GB, for the timeline: the others' time is not to be had of one GPU. Raises
    :class:`labkit.baseline.DirtyBaseline` if something is alive on the GPU; ``RuntimeError`` if `work` measures
    nothing, and what `simgpu.together` raises.
    """
    turns = _all(work, ranks, link)
    timed = turns
    if not simulator_is_on():
        with _clock():
            timed = _all(work, ranks, link)
    import simgpu

    return InTurn(turns, simgpu.together(one._log for one in timed))


def _all(work: Callable[[Turn], object], ranks: int, link: str | float | None) -> list[Turn]:
    Ledger()  # gives back what was cached and what cycles kept, and refuses a GPU that is not empty
    turns = []
    gc.freeze()  # what was there before is not searched again for each rank
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
    return nullcontext() if simulator_is_on() else simulated_gpu(CLOCK)


@contextmanager
def _logging() -> Iterator[Any]:
    if not simulator_is_on():
        yield None
        return
    import simgpu

    with simgpu.record_rank() as log:
        yield log


def bubble(ranks: int, micro_batches: int, stages: int = 1) -> float:
    """(P - 1) / (V M + P - 1): the idle share of a pipeline of `ranks` P with M equal micro-batches and `stages` V
    equal stages on each rank, over links that take no time (Huang et al., GPipe, 2019; Narayanan et al., 2021, 2.2.2,
    give it over the time of the work alone). Raises ``ValueError`` for a number below 1."""
    for name, number in (("ranks", ranks), ("micro_batches", micro_batches), ("stages", stages)):
        if not number >= 1:
            raise ValueError(f"{name}={number}: a pipeline has one or more")
    return (ranks - 1) / (stages * micro_batches + ranks - 1)
