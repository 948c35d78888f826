"""Adds collectives to the clock: how long one takes, and what waits for it.

As in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, a collective that Python waits for at once runs on the current
stream. Any other runs on one of NCCL's streams, after what was submitted to the current stream so far. A work's
`wait()` makes the current stream wait, and a barrier's also the host. Collectives of gloo on CPU tensors take no time.
"""

from collections.abc import Hashable

from simgpu.clock.communication import Transfer
from simgpu.device.machine import Machine
from simgpu.distributed.kinds import kind
from simgpu.distributed.traffic import Collective


class Arrival:
    """When a collective is done: at `time` of the clock, on the stream `own`. `host` says whether the host waits for
    it.
    """

    def __init__(self, machine: Machine, own: Hashable, time: float, host: bool):
        self._machine, self._own = machine, own
        self.time, self.host = time, host

    @property
    def past(self) -> bool:
        """Returns whether it is over for the host; each check takes time."""
        return self._machine.clock.passed(self.time)

    def wait(self) -> None:
        """Makes what is submitted to the current stream from now on run after it."""
        machine = self._machine
        if not machine.active:
            return
        if self.host:
            machine.clock.wait_until(self.time)
        elif self._own != machine.stream:
            machine.clock.hold(machine.stream, self.time)


def collective(machine: Machine, one: Collective, ranks: tuple[int, ...], own: Hashable) -> Arrival:
    """Adds a collective of these ranks of the world to the clock, on the stream `own`."""
    path, size = machine.links.path(ranks), len(ranks)
    seconds = path.seconds(kind(one.name).bytes_of_busiest(one.nbytes, size), kind(one.name).steps(size))
    return _arrival(machine, own, Transfer(one.name, ranks, seconds, (path.link, "out"), one.group))


def message(machine: Machine, one: Collective, ranks: tuple[int, ...], rank: int, peer: int, own: Hashable) -> Arrival:
    """Adds a message of a group of these ranks to the clock, between `rank` and `peer`, on the stream `own`."""
    path = machine.links.path((rank, peer))
    seconds = path.seconds(one.nbytes, kind(one.name).steps(2))
    return _arrival(
        machine, own, Transfer(one.name, ranks, seconds, (path.link, kind(one.name).direction), one.group, peer)
    )


def _arrival(machine: Machine, own: Hashable, transfer: Transfer) -> Arrival:
    end = machine.clock.communicate(machine.stream, own, transfer)
    return Arrival(machine, own, end, host=transfer.name == "barrier")


class Arrivals:
    """When the collectives of one NCCL call are all done."""

    def __init__(self, each: list[Arrival]):
        self._each = each

    @property
    def past(self) -> bool:
        """Returns whether they are over for the host; each check takes time."""
        return all(one.past for one in self._each)

    def wait(self) -> None:
        """Makes what is submitted to the current stream from now on run after them."""
        for one in self._each:
            one.wait()
