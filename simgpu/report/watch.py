"""Watches a GPU's allocator while a program runs: which blocks live at the peak, and who asked for them."""

import sys
from array import array
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.composites import autocast
from simgpu.kernels.launch import Launch
from simgpu.machine import Machine
from simgpu.memory.out_of_memory import OutOfMemory
from simgpu.modes import host_copies
from simgpu.report import owners
from simgpu.report.owners import (
    ACTIVATIONS,
    DATA,
    GRADIENTS,
    PARAMETERS,
    STATES,
    TEMPORARIES,
    WORKSPACES,
    Owners,
)
from simgpu.report.places import Place, Seen, seen, stack

FORWARD, NO_GRAD, BACKWARD, STEP = "forward", "without gradients", "backward", "optimizer step"
EVENTS = 100_000
"""Allocations and frees of which the timeline keeps every one; of a longer run it keeps the highest points."""

_CODES = {
    Machine.take_blas_workspace.__code__: WORKSPACES,
    Launch.scratch.__code__: WORKSPACES,
    torch.nn.Module._apply.__code__: PARAMETERS,
    host_copies.copied.__code__: DATA,
}


@dataclass(frozen=True, eq=False)
class Origin:
    """Who asks for memory: the operator, the node of autograd's graph, the stage, and the place in the program."""

    operator: str
    node: str
    stage: str
    own: Place | None
    library: Place | None

    @property
    def place(self) -> Place | None:
        """The line nearest to the allocation that is not PyTorch's."""
        return self.library or self.own

    def __str__(self) -> str:
        what = f"{self.node} ({self.operator})" if self.node and self.operator else self.node or self.operator
        return what or "a copy from the host"


class Held:
    """A block that was handed out: its `size` in bytes, its origin, and whose it is (None while that is not known)."""

    __slots__ = ("backwards", "hint", "number", "origin", "owner", "size", "survived")

    def __init__(self, size, origin, hint, number, backwards):
        self.size = size
        self.origin = origin
        self.hint = hint
        self.number = number
        self.backwards = backwards  # passes that had begun before
        self.owner: str | None = None
        self.survived = False  # whether it lived when the next backward pass began

    def part(self) -> str:
        """What it is a part of."""
        if self.owner is not None:
            return self.owner
        if self.hint is not None:
            return self.hint
        if self.origin.stage == FORWARD and self.survived:
            return ACTIVATIONS
        return TEMPORARIES


@dataclass(frozen=True)
class Failure:
    """An allocation that failed: bytes asked of the device, free and missing ones, and the error's text."""

    asked: int
    free: int
    text: str


class Moment:
    """What lived at one moment: `held`, what was allocated and reserved in bytes, who asked last, and its stack."""

    __slots__ = ("allocated", "asked", "event", "held", "origin", "reserved", "seconds", "stack", "steps")

    def __init__(self, allocated, reserved, asked, origin, stack, seconds, event, steps):
        self.allocated = allocated
        self.reserved = reserved
        self.asked = asked
        self.origin = origin
        self.stack = stack
        self.seconds = seconds
        self.event = event
        self.steps = steps
        self.held: list[Held] = []


class Watch:
    """Inside the `with`, everything that `machine` allocates and frees is taken note of.

    `peak`: the moment with most bytes allocated, None before the first allocation. `failed`: the moment of the last
    allocation that failed, and `failure`, None if none has; `failures`: how many have. `reserved`: most bytes of all
    segments. It keeps no tensor alive, and its own work takes no memory of the GPU.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.peak: Moment | None = None
        self.failed: Moment | None = None
        self.failure: Failure | None = None
        self.failures = 0
        self.reserved = 0
        self.events = 0
        self.log: list[Held] = []  # of the first EVENTS, each twice: when it is handed out and when it is given back
        self.curve = array("q")  # highest allocated and reserved bytes of each `stride` events, one after the other
        self._stride, self._top, self._topmost = 1, 0, 0
        self.owners = Owners()
        self._live: dict[int, Held] = {}
        self._gone: list[Held] = []  # lived at the peak, and does not any more
        self._origins: dict[tuple, Origin] = {}
        self._number = 0
        self._at_peak = 0
        self._allocated = 0
        self._task, self._backwards = -1, 0
        self._inner: tuple = ()

    def __enter__(self) -> "Watch":
        allocator = self.machine.allocator
        self._inner = allocator.malloc, allocator.free
        allocator.malloc, allocator.free = self._malloc, self._free
        self.owners.begin(self._mark)
        return self

    def __exit__(self, *error) -> None:
        self.owners.end()
        allocator = self.machine.allocator
        allocator.malloc, allocator.free = self._inner

    def close(self) -> None:
        """Finds out whose the blocks are that live now. To be called at the end, before the program's objects go."""
        self.owners.look()

    # The allocator's two calls

    def _malloc(self, nbytes: int, stream: int = 0):
        try:
            block = self._inner[0](nbytes, stream)
        except OutOfMemory as error:
            self._fail(error)
            raise
        if block is None:
            return None
        with self.machine.turns.lock:
            frame = sys._getframe(1)
            stage = self._stage()
            origin, hint = self._origin(frame, stage)
            self._number += 1
            held = self._live[block.address] = Held(block.size, origin, hint, self._number, self._backwards)
            self._allocated += block.size
            reserved = self.machine.allocator.reserved
            self.reserved = max(self.reserved, reserved)
            self._note(held, reserved)
            if self.peak is None or self._allocated > self.peak.allocated:
                self._gone.clear()
                self._at_peak = self._number
                self.peak = self._moment(block.size, origin, frame)
        return block

    def _free(self, block) -> None:
        with self.machine.turns.lock:
            held = self._live.pop(block.address, None)
            if held is not None:
                self._stage()
                held.survived = held.survived or self._backwards > held.backwards
                self._allocated -= held.size
                if held.number <= self._at_peak:
                    self._gone.append(held)
                self._note(held, self.machine.allocator.reserved)
        self._inner[1](block)

    def _fail(self, error: OutOfMemory) -> None:
        self.failures += 1
        frame = sys._getframe(2)
        origin, _ = self._origin(frame, self._stage())
        self.owners.look()
        free = self.machine.device.mem_get_info()[0]
        self.failure = Failure(error.alloc_size or error.size, free, str(error))
        self.failed = self._moment(self.failure.asked, origin, frame)
        self.failed.held = list(self._live.values())

    # Who, when, where

    def _stage(self) -> str:
        """Of the program: what it is doing now. A backward pass that is new is counted."""
        task = torch._C._current_graph_task_id()
        if task not in (-1, self._task):
            self._task = task
            self._backwards += 1
        if self.owners.stepping:
            return STEP
        if torch.is_grad_enabled():
            return FORWARD  # also where a checkpoint computes again in backward
        return BACKWARD if task != -1 else NO_GRAD

    def _origin(self, frame, stage: str) -> tuple[Origin, Any]:
        found: Seen = seen(frame, _CODES, DATA)
        operator = self.machine.operator
        node = torch._C._current_autograd_node() if stage is BACKWARD else None
        named = "" if node is None else node.name()
        key = (operator, named, stage, found.own, found.library)
        origin = self._origins.get(key)
        if origin is None:
            name = "" if operator is None else operator._schema.name.removeprefix("aten::")
            origin = self._origins[key] = Origin(name, named, stage, found.own, found.library)
        return origin, found.code

    def _moment(self, asked, origin, frame) -> Moment:
        return Moment(
            self._allocated,
            self.machine.allocator.reserved,
            asked,
            origin,
            stack(frame),
            self.machine.clock.host,
            self.events,
            self.owners.steps,
        )

    def _mark(self, tensor: torch.Tensor, owner: str) -> None:
        """Says whose the block of a tensor is."""
        block = owners.block_of(tensor, self.machine)
        held = None if block is None else self._live.get(block.address)
        if held is not None and held.owner is None:
            held.owner = owner

    def _note(self, held: Held, reserved: int) -> None:
        """Adds a point to the timeline."""
        self.events += 1
        if len(self.log) < EVENTS:
            self.log.append(held)
        self._top = max(self._top, self._allocated)
        self._topmost = max(self._topmost, reserved)
        if self.events % self._stride == 0:
            self.curve.extend((self._top, self._topmost))
            self._top = self._topmost = 0
            if len(self.curve) >= 2 * EVENTS:
                self._thin_out()

    def _thin_out(self) -> None:
        allocated, reserved = self.curve[0::2], self.curve[1::2]
        self.curve = array("q")
        for one, other, *pair in zip(allocated[0::2], allocated[1::2], reserved[0::2], reserved[1::2], strict=True):
            self.curve.extend((max(one, other), max(pair)))
        self._stride *= 2

    # What was found

    def at_peak(self) -> Moment | None:
        """The peak, with what lived then; of a run that ended in an error for want of memory, that moment."""
        moment = self.failed if self.failed is not None else self.peak
        if moment is not None and moment is self.peak:
            live = [one for one in self._live.values() if one.number <= self._at_peak]
            for one in live:  # of one that is gone it was told when it went
                one.survived = one.survived or self._backwards > one.backwards
            moment.held = live + self._gone
        for one in moment.held if moment is not None and moment is self.failed else ():
            one.survived = True  # the pass that would tell did not come
        return moment


__all__ = ["ACTIVATIONS", "GRADIENTS", "STATES", "Failure", "Held", "Moment", "Origin", "Watch", "autocast"]
