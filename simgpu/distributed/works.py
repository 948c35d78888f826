"""The handles and futures of collectives, and the collectives' time on the clock."""

import weakref
from collections.abc import Hashable
from datetime import timedelta

import torch
from torch.autograd import Variable
from torch.distributed import Work
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from simgpu.clock.communication import Transfer
from simgpu.device import machine as machines
from simgpu.device.machine import Machine
from simgpu.distributed.kinds import Collective, kind
from simgpu.storage import storage_map

# Adds collectives to the clock: how long one takes, and what waits for it.
# As in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, a collective that Python waits for at once runs on the
# current stream. Any other runs on one of NCCL's streams, after what was submitted to the current stream so far. A
# work's `wait()` makes the current stream wait, and a barrier's also the host. Collectives of gloo on CPU tensors
# take no time.


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


# Implements the futures of collectives: waiting for one makes the current stream wait, and callbacks run on pool
# streams.
# Source: aten/src/ATen/core/ivalue_inl.h, Future::then, invokeCallback, synchronizeWithCurrentStreams. DDP's
# communication hooks use these, so what they do after the sum allocates memory and workspaces on those streams.


class PendingTransfer(Future):
    """A completed future of `value`, whose tensors are ready at `arrival` (None if that takes no time).

    DDP's reducer waits for its buckets in C++ at the end of the backward pass, so the stream waits there.
    """

    def __init__(self, value, arrival: "Arrival | Arrivals | _Event | None"):
        tensors = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
        real = {one.device for one in tensors if one.device.type == "cuda" and storage_map.of(one) is None}
        super().__init__(devices=sorted(real, key=str))
        self.set_result(value)
        self._waiting = _Waiting(tensors, arrival)
        if torch._C._current_graph_task_id() != -1:
            Variable._execution_engine.queue_callback(self._waiting.at_the_end)

    def wait(self):
        """Returns the values; the current stream waits for them and is recorded as their user."""
        self._waiting.synchronize()
        return super().wait()

    def then(self, callback):
        """Returns the future of the result of `callback(self)`, which runs now, on a stream of the pool."""
        machine = self._waiting.machine
        if machine is None:
            return super().then(callback)
        self._waiting.followed = True
        before, machine.stream = machine.stream, machine.new_stream_id(0)
        try:
            self._waiting.synchronize()
            value = callback(self)
            return PendingTransfer(value, _Event(machine))
        except Exception as error:  # the error is the result, and is raised by `wait`
            failed = Future()
            failed.set_exception(error)
            return failed
        finally:
            machine.stream = before

    def add_done_callback(self, callback) -> None:
        """Calls `callback(self)` now, on a stream of the pool."""
        self.then(callback)


class _Waiting:
    """Models the wait for tensors that are ready at `arrival`, without keeping them alive.

    `machine` is their simulated GPU, or None. `followed` says whether something else is waited for in their place.
    """

    def __init__(self, tensors: list[torch.Tensor], arrival):
        self.machine = machines.current() if any(map(storage_map.on_gpu, tensors)) else None
        self.followed = False
        self._arrival = arrival
        self._tensors = [weakref.ref(one) for one in tensors]

    def at_the_end(self) -> None:
        """Waits, unless the program waits for a future that follows from this one."""
        if not self.followed:
            self.synchronize()

    def synchronize(self) -> None:
        """Makes the current stream wait for the tensors, and records it as their user."""
        if self._arrival is not None:
            self._arrival.wait()
        machine = self.machine
        if machine is None or not machine.active:
            return
        for one in (found() for found in self._tensors):
            place = None if one is None else storage_map.of(one)
            if place is not None and place.machine is machine and place.block is not None:
                machine.allocator.record_stream(place.block, machine.stream)


class _Event:
    """The time at which the current stream's work so far is done."""

    def __init__(self, machine: Machine):
        self._machine, self._stream = machine, machine.stream
        self._time = machine.clock.record(machine.stream)

    def wait(self) -> None:
        """Makes the current stream wait for it."""
        if self._machine.active and self._machine.stream != self._stream:
            self._machine.clock.hold(self._machine.stream, self._time)


# The handles of collectives, which are finished at once for the program, and on the clock when the links are done.
# The program does not wait, because the other ranks don't exist.


class Finished(Work):
    """A finished work.

    `outputs` are the tensors that it keeps alive while it exists, as NCCL's does for a collective (its future holds
    them; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, collective). `kept` are those that it keeps until it is
    waited for: the inputs of an asynchronous collective (stashed_for_allocator_safety_). `arrival` is when the clock
    has it done, or None if it took no time.
    """

    def __init__(self, outputs=(), kept=(), arrival: Arrival | Arrivals | None = None):
        super().__init__()
        self.arrival = arrival
        self.outputs = list(outputs)
        self.kept = list(kept)
        self.source = -1

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Makes the current stream wait, after a barrier the host; returns True."""
        self.synchronize()
        return True

    def is_completed(self) -> bool:
        """Returns whether it is done by the clock. Each check takes time, so that a polling loop ends."""
        return self.arrival is None or self.arrival.past

    def is_success(self) -> bool:
        """Returns True."""
        return True

    def exception(self):
        """Returns None."""

    def synchronize(self) -> None:
        """Makes the current stream wait, after a barrier the host."""
        self.kept.clear()
        if self.arrival is not None:
            self.arrival.wait()

    block_current_stream = synchronize

    def result(self) -> list[torch.Tensor]:
        """Returns the tensors that the collective wrote."""
        return list(self.outputs)

    def source_rank(self) -> int:
        """Returns the rank that a message came from."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> PendingTransfer:
        """Returns a completed future of the tensors that the collective wrote; waiting for it makes the stream wait."""
        return PendingTransfer(list(self.outputs), self.arrival)
