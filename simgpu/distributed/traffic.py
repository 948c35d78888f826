"""Counts what one rank's collectives move: their number per kind, the bytes of their messages, and the bytes sent.

The bytes sent are those of the ring, the algorithm that NCCL uses for large messages: a message of S bytes is split
into N parts that go round (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
2009; NVIDIA, nccl-tests, doc/PERFORMANCE.md, where the same factors turn a time into "bus bandwidth"). A rank receives
the same number of bytes as it sends.
"""

from dataclasses import dataclass
from fractions import Fraction


def _share(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


# The factor of S that each rank sends for a message of S bytes in a group of N. S is the size of the tensor that is
# equal on all ranks at the start (all_reduce, reduce_scatter's input) or at the end (all_gather's output).
RING = {
    "all_reduce": lambda n: 2 * _share(n),
    "all_gather": _share,
    "reduce_scatter": _share,
    "all_to_all": _share,  # S is what a rank has for all; its own part stays
    "broadcast": lambda n: Fraction(1 if n > 1 else 0),  # passed on once by every rank but the last of the chain
    "reduce": lambda n: Fraction(1 if n > 1 else 0),
}
KINDS = (*RING, "gather", "scatter", "send", "recv", "barrier")


@dataclass(frozen=True)
class Collective:
    """One collective that a rank took part in.

    `nbytes` is its message's size as in `RING`, `ranks` its group's size, and `sent` the bytes that this rank sends by
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
            raise KeyError(f"{kind!r} is no kind of collective; they are {', '.join(KINDS)}")
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


def sent_by_ring(name: str, nbytes: int, ranks: int, root: bool = True) -> int:
    """Returns the bytes that one rank sends in a collective of `nbytes` among `ranks`, rounded up to a whole byte.

    For `gather`, `nbytes` is one rank's part, which all but the root send. For `scatter`, it is one rank's part, of
    which the root sends one to each other rank. `send` counts all of it, `recv` and `barrier` nothing. Raises
    ValueError for an unknown name.
    """
    if name in RING:
        return -((-RING[name](ranks) * nbytes) // 1)
    if name == "send":
        return nbytes
    if name == "gather":
        return 0 if root else nbytes
    if name == "scatter":
        return (ranks - 1) * nbytes if root else 0
    if name in ("recv", "barrier"):
        return 0
    raise ValueError(f"{name!r} is not a collective whose traffic is known; known are {', '.join(KINDS)}")
