"""Plays the logs of several ranks together, each on its own clock; ranks wait for each other at messages and
collectives.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from simgpu.clock.clock import Clock
from simgpu.clock.communication import Transfer
from simgpu.clock.tracks import COMPUTE, Lanes
from simgpu.distributed.kinds import kind
from simgpu.distributed.log import Piece, RankLog


@dataclass(eq=False)
class PendingTransfer:
    """A transfer of one rank whose time depends on others: a receive, or a collective with other participants."""

    player: "Player"
    own: Hashable
    transfer: Transfer
    place: int  # its index among those of its kind and ranks
    ready: float  # when its own rank is ready
    before: "PendingTransfer | None"  # the previous one on the same stream
    end: float | None = None

    @property
    def free(self) -> bool:
        """Returns whether it is known when its stream is free."""
        return self.before is None or self.before.end is not None

    @property
    def begin(self) -> float:
        """Returns the earliest time at which its own rank lets it begin."""
        return max(self.ready, self.player.clock.streams.get(self.own, 0.0))

    def carry(self, begin: float) -> None:
        """Lets it begin at that time."""
        self.end = self.player.clock.carried(self.own, self.transfer, begin)

    def __str__(self) -> str:
        transfer = self.transfer
        what = f"{transfer.name} of ranks {', '.join(map(str, transfer.members))}"
        if transfer.peer is not None:
            what = f"message {self.place + 1} from rank {transfer.peer}"
        return f"rank {self.player.log.rank} waits for {what}"


class Players:
    """The ranks that are played, and what they have exchanged so far."""

    def __init__(self, logs: list[RankLog]):
        self.each = [Player(self, log) for log in logs]
        self.present = frozenset(log.rank for log in logs)
        # times at which messages began to move, by sender and receiver
        self.sent: dict[Hashable, list[float]] = defaultdict(list)
        self.met: dict[Hashable, dict[int, PendingTransfer]] = defaultdict(
            dict
        )  # the ranks that have arrived at a collective

    def play(self) -> None:
        """Plays all logs to their ends. Raises RuntimeError if the ranks wait for each other forever."""
        waiting = self.each
        while waiting:
            if not [player for player in waiting if player.advance()]:
                raise RuntimeError(
                    "these ranks wait for each other for ever: " + "; ".join(str(player.blocked) for player in waiting)
                )
            waiting = [player for player in waiting if not player.finished]

    def settle(self, one: PendingTransfer) -> bool:
        """Returns whether it is known now when a transfer ends."""
        if one.end is None and one.before is not None:
            self.settle(one.before)
        if one.end is not None or not one.free:
            return one.end is not None
        transfer, rank = one.transfer, one.player.log.rank
        if transfer.peer is not None:
            messages = self.sent[transfer.members, transfer.group, transfer.peer, rank]
            if one.place >= len(messages):
                return False
            one.carry(max(one.begin, messages[one.place]))
            return True
        came = self.met[transfer.members, transfer.group, one.place]
        if len(came) < len(self.present.intersection(transfer.members)):
            return False
        for other in came.values():
            if other is not one and other.before is not None:
                self.settle(other.before)
        if not all(other.free for other in came.values()):
            return False
        begin = max(other.begin for other in came.values())
        for other in came.values():
            other.carry(begin)
        return True


class Player:
    """One rank that is played: its clock, and its position in its log."""

    def __init__(self, players: Players, log: RankLog):
        self.players, self.log = players, log
        self.clock = Clock(log.spec, log.slowness)
        self.clock.lanes = self.record = Lanes()
        self.blocked: PendingTransfer | None = None
        self.finished = False
        self._at = 0
        self._moments: dict[int, float | PendingTransfer] = {}
        self._last: dict[Hashable, PendingTransfer] = {}  # the last transfer on each stream
        self._places: dict[Hashable, int] = defaultdict(int)
        self._open: list[tuple[Piece, int]] = []
        self._done: list[tuple[Piece, int, int]] = []  # pieces, with the range of their intervals

    def advance(self) -> bool:
        """Continues as far as possible; returns whether there was any progress."""
        begun = self._at, self.finished
        while self._at < len(self.log.entries):
            what, *arguments = self.log.entries[self._at]
            if self._must_wait(what, arguments):
                return (self._at, self.finished) != begun
            getattr(self, f"_{what}")(*arguments)
            self._at += 1
        self.finished = self._all_known()
        return (self._at, self.finished) != begun

    def _must_wait(self, what: str, arguments: list) -> bool:
        """Returns whether the next entry needs a moment that is not known yet."""
        if what == "hold":
            return not self._known(self._moments.get(arguments[1]))
        if what == "wait":
            return not self._known(self._moments.get(arguments[0]))
        if what == "synchronize" and arguments[0] is None:
            return not self._all_known()
        stream = arguments[0] if what in ("launch", "copy", "record", "synchronize", "transfer") else None
        return stream is not None and not self._known(self._last.get(stream))

    def _known(self, moment: "float | PendingTransfer | None") -> bool:
        if isinstance(moment, PendingTransfer) and not self.players.settle(moment):
            self.blocked = moment
            return False
        return True

    def _all_known(self) -> bool:
        return all(map(self._known, self._last.values()))

    def _time(self, number: int | None) -> float:
        """Returns the time of a known moment; the beginning for one from before the log."""
        found = 0.0 if number is None else self._moments[number]
        return (found.end or 0.0) if isinstance(found, PendingTransfer) else found

    # The entries of a log

    def _host(self, seconds: float) -> None:
        self.clock.host += seconds

    def _launch(self, stream: int, work: float, kernels: int, overhead: float, name: str) -> None:
        self.clock.launch(stream, work, kernels, overhead, name)

    def _copy(self, stream: int, nbytes: int, direction: str, pinned: bool, blocking: bool) -> None:
        self.clock.copy(stream, nbytes, direction, pinned=pinned, blocking=blocking)

    def _record(self, stream: int, number: int) -> None:
        self._moments[number] = self.clock.record(stream)

    def _hold(self, stream: int, number: int | None) -> None:
        self.clock.hold(stream, self._time(number))

    def _wait(self, number: int) -> None:
        self.clock.wait_until(self._time(number))

    def _synchronize(self, stream: int | None) -> None:
        self.clock.synchronize(stream)

    def _begin(self, piece: Piece) -> None:
        self._open.append((piece, len(self.record.intervals)))

    def _end(self, piece: Piece) -> None:
        for position in reversed(range(len(self._open))):
            if self._open[position][0] == piece:
                self._done.append((*self._open.pop(position), len(self.record.intervals)))
                return

    def _transfer(self, stream: int, own: Hashable, transfer: Transfer, number: int) -> None:
        shared = self.players.present.intersection(transfer.members) - {self.log.rank}
        if transfer.name == "send" or not (shared if transfer.peer is None else transfer.peer in shared):
            end = self._moments[number] = self.clock.communicate(stream, own, transfer)
            if transfer.name == "send":
                to = transfer.members, transfer.group, self.log.rank, transfer.peer
                self.players.sent[to].append(end - transfer.seconds)
            return
        ready = self.clock.asked(stream, own)
        between = transfer.members, transfer.group, transfer.peer
        awaited = PendingTransfer(self, own, transfer, self._places[between], ready, self._last.get(own))
        self._places[between] += 1
        if kind(transfer.name).rounds is not None:
            self.players.met[transfer.members, transfer.group, awaited.place][self.log.rank] = awaited
        self._moments[number] = self._last[own] = awaited

    def stretches(self) -> list[tuple[Piece, float, float]]:
        """Returns when the pieces ran.

        What a stage did for one micro-batch counts once, and a named range around it is not added.
        """
        spans: dict[tuple[Piece, int], tuple[float, float]] = {}
        seen: dict[Piece, int] = defaultdict(int)
        for piece, first, last in sorted(self._done, key=lambda one: one[1:]):
            if piece.stage is None and any(
                other.stage is not None and first <= begin and end <= last for other, begin, end in self._done
            ):
                continue
            kernels = [one for one in self.record.intervals[first:last] if one.lane == COMPUTE]
            if not kernels:
                continue
            key = piece, 0
            if piece.stage is None:
                key, seen[piece] = (piece, seen[piece]), seen[piece] + 1
            begin, end = min(one.start for one in kernels), max(one.end for one in kernels)
            before = spans.get(key, (begin, end))
            spans[key] = min(before[0], begin), max(before[1], end)
        return [(piece, *span) for (piece, _), span in spans.items()]
