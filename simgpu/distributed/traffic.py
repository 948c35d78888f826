"""Counts what one rank's collectives move: their number per kind, the bytes of their messages, and the bytes sent."""

from dataclasses import dataclass

from simgpu.distributed.kinds import KINDS


@dataclass(frozen=True)
class Collective:
    """One collective that a rank took part in.

    `nbytes` is its message's size as in `kinds`, `ranks` its group's size, and `sent` the bytes that this rank sends by
    the ring.
    """

    name: str
    nbytes: int
    ranks: int
    sent: int
    group: str = ""


@dataclass(frozen=True)
class Sum:
    """The count of one kind of collective, the bytes of its messages, and the bytes that this rank sent for them."""

    count: int
    nbytes: int
    sent: int


class Traffic:
    """The collectives of one rank in order, and their sums by kind.

    `traffic["all_reduce"].sent` and `traffic.sent` are in bytes. Iterating yields each `Collective`, and `clear()`
    starts afresh.
    """

    def __init__(self) -> None:
        self._collectives: list[Collective] = []

    def add(self, collective: Collective) -> None:
        """Records one collective."""
        self._collectives.append(collective)

    def clear(self) -> None:
        """Drops what was recorded."""
        self._collectives.clear()

    def __iter__(self):
        return iter(tuple(self._collectives))

    def __len__(self) -> int:
        return len(self._collectives)

    def __getitem__(self, kind: str) -> Sum:
        """Returns the sum of one kind, zeros if there were none. Raises KeyError, which lists the kinds, for an unknown
        one.
        """
        if kind not in KINDS:
            raise KeyError(f"{kind!r} is not a kind of collective; the kinds are {', '.join(KINDS)}")
        return self.by_kind().get(kind, Sum(0, 0, 0))

    def by_kind(self) -> dict[str, Sum]:
        """Returns the sums of the kinds that ran, in the order in which they first did."""
        sums: dict[str, Sum] = {}
        for one in self._collectives:
            old = sums.get(one.name, Sum(0, 0, 0))
            sums[one.name] = Sum(old.count + 1, old.nbytes + one.nbytes, old.sent + one.sent)
        return sums

    @property
    def sent(self) -> int:
        """Returns the bytes that this rank has sent."""
        return sum(one.sent for one in self._collectives)

    def __str__(self) -> str:
        lines = [f"{'collective':<16}{'count':>8}{'message bytes':>18}{'bytes sent':>18}"]
        for kind, total in self.by_kind().items():
            lines.append(f"{kind:<16}{total.count:>8,}{total.nbytes:>18,}{total.sent:>18,}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Traffic of {len(self)} collectives, {self.sent:,} bytes sent>"
