"""Implements the futures of collectives: waiting for one makes the current stream wait, and callbacks run on pool
streams.

Source: aten/src/ATen/core/ivalue_inl.h, Future::then, invokeCallback, synchronizeWithCurrentStreams. DDP's
communication hooks use these, so what they do after the sum allocates memory and workspaces on those streams.
"""

import weakref

import torch
from torch.autograd import Variable
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from simgpu.device import machine as machines
from simgpu.device.machine import Machine
from simgpu.distributed.transfers import Arrival, Arrivals
from simgpu.storage import storage_map


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
