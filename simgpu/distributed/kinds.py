"""One row per kind of collective, and counts of what a rank's collectives move."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

# One row per kind of collective: what a rank sends and receives, in how many steps, and how NCCL treats its dtypes.
# The bytes sent are those of the ring, the algorithm that NCCL uses for large messages: a message of S bytes is split
# into N parts that go round (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
# workstations", 2009; NVIDIA, nccl-tests, doc/PERFORMANCE.md, where the same factors turn a time into "bus
# bandwidth"). In a ring, a rank receives as many bytes as it sends. S is the size of the tensor that is equal on all
# ranks at the start (all_reduce, reduce_scatter's input) or at the end (all_gather's output), and for gather and
# scatter it is one rank's part.
#
# Gather and scatter have no ring: their root exchanges a message with every other rank, all at once
# (torch/csrc/cuda/nccl.cpp). All messages pass the root's link and share it, so they are assumed to end together.

Factor = Callable[[int, bool], Fraction | int]


@dataclass(frozen=True)
class Kind:
    """A kind of collective.

    `sent(ranks, root)` is the factor of a message's bytes that a rank sends in a group of `ranks`; `root` says whether
    it is the root of the collective. `received` is that of the bytes that it receives, None if they are as many.
    `rounds` is the number of times that a message goes round the ring, each in
    ranks - 1 steps; None for a message between two ranks, which has one step. `direction` is "out" or "in" for such a
    message, which occupies the link in one direction.

    `by_torch_cuda`: torch::cuda::nccl sends it, whose errors have other texts. `complex_as_real`: complex numbers are
    sent as pairs of real ones, which only sums allow. `reduces_float8`: whether all float8 dtypes are accepted
    (ProcessGroupNCCL.cpp).
    """

    sent: Factor
    received: Factor | None = None
    rounds: int | None = 1
    direction: str = "out"
    by_torch_cuda: bool = False
    complex_as_real: bool = False
    reduces_float8: bool = True

    def bytes_sent(self, nbytes: int, ranks: int, root: bool = True) -> int:
        """Returns the bytes that one rank sends for a message of `nbytes`, rounded up to a whole byte."""
        return _whole(self.sent(ranks, root) * nbytes)

    def bytes_received(self, nbytes: int, ranks: int, root: bool = True) -> int:
        """Returns the bytes that one rank receives for a message of `nbytes`, rounded up to a whole byte."""
        return _whole((self.received or self.sent)(ranks, root) * nbytes)

    def bytes_of_busiest(self, nbytes: int, ranks: int) -> int:
        """Returns the bytes that the busiest link of a group carries in one direction, which the others wait for."""
        ways = (self.bytes_sent, self.bytes_received)
        return max(way(nbytes, ranks, root) for way in ways for root in (True, False))

    def steps(self, ranks: int) -> int:
        """Returns the steps of the ring in a group of `ranks`."""
        return 1 if self.rounds is None else self.rounds * (ranks - 1)


def _whole(nbytes: Fraction | int) -> int:
    return -(-nbytes // 1)


def _share(times: int = 1) -> Factor:
    """Returns the factor of a message whose N parts go round: each rank sends all of them but its own."""
    return lambda ranks, root: times * Fraction(ranks - 1, ranks)


def _chain(ranks: int, root: bool) -> int:
    return 1 if ranks > 1 else 0  # passed on once by every rank but the last of the chain


def _part(ranks: int, root: bool) -> int:
    return 0 if root else 1


def _all_parts(ranks: int, root: bool) -> int:
    return ranks - 1 if root else 0


def _whole_message(ranks: int, root: bool) -> int:
    return 1


def _nothing(ranks: int, root: bool) -> int:
    return 0


KINDS = {
    "all_reduce": Kind(_share(2), rounds=2, complex_as_real=True, reduces_float8=False),
    "all_gather": Kind(_share()),
    "reduce_scatter": Kind(_share(), reduces_float8=False),
    "all_to_all": Kind(_share(), by_torch_cuda=True),
    "broadcast": Kind(_chain, _part, complex_as_real=True),
    "reduce": Kind(_chain, complex_as_real=True),
    "gather": Kind(_part, _all_parts, by_torch_cuda=True),
    "scatter": Kind(_all_parts, _part, by_torch_cuda=True),
    "send": Kind(_whole_message, _nothing, rounds=None, complex_as_real=True),
    "recv": Kind(_nothing, _whole_message, rounds=None, direction="in", complex_as_real=True),
    "barrier": Kind(_nothing, rounds=2),
}
"""Every kind of collective that a rank can take part in, by the name in `traffic`."""


def kind(name: str) -> Kind:
    """Returns the row of a collective. Raises ValueError for an unknown name, with the known ones."""
    if name not in KINDS:
        raise ValueError(f"{name!r} is not a known collective; known are {', '.join(KINDS)}")
    return KINDS[name]


# Counts what one rank's collectives move: their number per kind, the bytes of their messages, and the bytes sent.


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
