"""Combines several ranks: plays their logs together, so that the result shows which rank waits for which."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simgpu.clock.estimates import digits, duration
from simgpu.clock.tracks import COMPUTE, Interval
from simgpu.distributed.log import Piece, RankLog
from simgpu.distributed.replay import Players


@dataclass(frozen=True)
class Stretch:
    """When a rank did a piece of its work, in seconds: from its first kernel (`start`) to its last (`end`)."""

    rank: int
    piece: Piece
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Returns how long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Holds what the ranks did and when, in seconds since all of them began.

    `pieces` are the named parts of their work (`Stretch`), by rank and start. `lanes` is everything that each rank's
    host, kernels and links did. `seconds` is the time until the last rank was done.
    """

    ranks: tuple[int, ...]
    pieces: tuple[Stretch, ...]
    lanes: dict[int, tuple[Interval, ...]] = field(repr=False)
    seconds: float

    def of(self, rank: int) -> tuple[Stretch, ...]:
        """Returns the pieces of one rank. Raises KeyError, which lists the ranks, for an unknown one."""
        if rank not in self.ranks:
            raise KeyError(f"rank {rank} is none of this timeline: they are {', '.join(map(str, self.ranks))}")
        return tuple(one for one in self.pieces if one.rank == rank)

    @property
    def span(self) -> tuple[float, float]:
        """Returns the start of the first piece and the end of the last; 0 and `seconds` without pieces."""
        if not self.pieces:
            return 0.0, self.seconds
        return min(one.start for one in self.pieces), max(one.end for one in self.pieces)

    def idle(self, rank: int) -> float:
        """Returns the seconds of the span in which a rank works on no piece, or without pieces, runs no kernel."""
        start, end = self.span
        spans = [(one.start, one.end) for one in self.of(rank)]
        if not self.pieces:
            spans = [(one.start, one.end) for one in self.lanes[rank] if one.lane == COMPUTE]
        return end - start - _covered(spans)

    @property
    def bubble(self) -> float:
        """Returns the idle share of the span, over all ranks.

        For GPipe and 1F1B with P equal stages, M equal micro-batches and links that take no time it is (P - 1) / (M + P
        - 1) (Huang et al., GPipe, 2019; Narayanan et al., "Efficient large-scale language model training on GPU
        clusters", 2021, divide by the time without idling).
        """
        start, end = self.span
        whole = (end - start) * len(self.ranks)
        return sum(map(self.idle, self.ranks)) / whole if whole else 0.0

    def __str__(self) -> str:
        start, end = self.span
        lines = [f"{'rank':>4}  {'pieces':>6}  {'busy (ms)':>10}  {'idle (ms)':>10}  {'idle':>6}"]
        for rank in self.ranks:
            idle = self.idle(rank)
            share = idle / (end - start) if end > start else 0.0
            busy = end - start - idle
            lines.append(
                f"{rank:>4}  {len(self.of(rank)):>6}  {digits(1e3 * busy):>10}  {digits(1e3 * idle):>10}  {share:>6.1%}"
            )
        lines.append(f"about {duration(end - start)} in all (estimate), {self.bubble:.1%} of it idle")
        return "\n".join(lines)


def together(logs: Iterable[RankLog]) -> Timeline:
    """Plays the logs of ranks that were simulated one after the other (`simgpu.record_rank`) together.

    All ranks begin at once. A message moves when the sender has sent it and the receiver has requested it, and messages
    from one rank to another are matched in order. A collective begins when the last of its ranks among the logs has
    reached it. When the host of a waiting rank continues, it does at once what it did after that wait. A sender
    continues when its links have carried the message, whether or not it was requested. NCCL may hold it longer, because
    it keeps large messages on the sender's side until then.

    Raises TypeError for an argument that is not a log, and ValueError for no log, for two logs of one rank, or for logs
    of different worlds. Raises RuntimeError, which says who waits for what, if ranks wait for each other forever.
    """
    players = Players(_checked(logs))
    players.play()
    stretches = [Stretch(player.log.rank, *one) for player in players.each for one in player.stretches()]
    return Timeline(
        tuple(player.log.rank for player in players.each),
        tuple(sorted(stretches, key=lambda one: (one.rank, one.start, one.end))),
        {player.log.rank: tuple(player.record.intervals) for player in players.each},
        max(max(player.clock.done(), player.clock.host) for player in players.each),
    )


def _checked(logs: Iterable[RankLog]) -> list[RankLog]:
    logs = list(logs)
    for one in logs:
        if not isinstance(one, RankLog):
            raise TypeError(f"wanted logs of simgpu.record_rank(), not {one!r}")
    if not logs:
        raise ValueError("no log: take one of each rank with simgpu.record_rank()")
    numbers = [one.rank for one in logs]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"each rank has one log; these are of ranks {', '.join(map(str, numbers))}")
    if len({one.ranks for one in logs}) > 1:
        raise ValueError(f"logs of worlds of different sizes: {', '.join(map(repr, logs))}")
    return sorted(logs, key=lambda one: one.rank)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the seconds that spans cover, counting overlaps once."""
    total, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total
