"""Watches a GPU's allocator while a program runs: which blocks are alive at the peak, and what allocated them."""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from simgpu.allocator.out_of_memory import OutOfMemory
from simgpu.allocator.requests import Requests
from simgpu.device.machine import Machine
from simgpu.dispatch import host_copies
from simgpu.ops.op_call import OpCall
from simgpu.report import holders
from simgpu.report.failing import model_of
from simgpu.report.growth import Grown, Growth
from simgpu.report.modules import Known, Modules, calls_one, common, recomputes
from simgpu.report.owners import (
    ACTIVATIONS,
    DATA,
    GATHERED,
    GRADIENTS,
    PARAMETERS,
    STATES,
    TEMPORARIES,
    WORKSPACES,
    Owners,
    of_fsdp,
)
from simgpu.report.places import Codes, Place, Seen, codes_of, seen, stack
from simgpu.report.timeline import EVENTS, Timeline
from simgpu.storage import storage_map

FORWARD, NO_GRAD, BACKWARD, STEP = "forward", "without gradients", "backward", "optimizer step"
INPUT = "input"
COPIES = "contiguous copies"  # inside operators: temporaries


# The kind of memory by the code that allocates it: this package's, or FSDP's, which need not be imported yet.
_CODES = Codes(
    {
        Machine.take_blas_workspace.__code__: WORKSPACES,
        OpCall.scratch.__code__: WORKSPACES,
        OpCall.scratch_like.__code__: TEMPORARIES,
        OpCall.contiguous.__code__: COPIES,
        torch.nn.Module._apply.__code__: PARAMETERS,
        host_copies.copied.__code__: DATA,
    },
    lambda code: of_fsdp(code.co_filename, code.co_name),
)
_WEAK = (DATA, WORKSPACES)  # these give way to code further out on the stack
_FACTORIES = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "empty", "empty_strided", "eye", "full", "linspace", "normal", "ones", "rand", "randint", "randn"),
        *("randperm", "zeros"),
    )
)


@dataclass(frozen=True, eq=False)
class Origin:
    """The origin of a block: the operator, the node of autograd's graph, the stage, and the place in the program."""

    operator: str
    node: str
    stage: str
    own: Place | None
    library: Place | None
    copy: bool = False  # a copy that the operator makes of an argument that is not contiguous
    stack: tuple[Place, ...] = ()  # of the first block

    @property
    def place(self) -> Place | None:
        """The line nearest to the allocation that is not PyTorch's."""
        return self.library or self.own

    def __str__(self) -> str:
        what = f"{self.node} ({self.operator})" if self.node and self.operator else self.node or self.operator
        return (what or "a copy from the host") + (", contiguous copy of an argument" if self.copy else "")


class Held:
    """A block that was handed out: its `size` in bytes, its origin, and its owner (None while that is not known).

    `recorded`: whether autograd recorded the operator that allocated it. `ran`: the module that ran then. `holders`: of
    parameters and buffers the modules that hold it. `parameters`: of gradients and states the blocks of the parameters.
    `argument_of`: the modules that autograd recorded a call of with it.
    """

    __slots__ = (
        *("argument_of", "backwards", "hint", "holders", "number", "origin", "owner", "parameters", "ran", "recorded"),
        *("size", "survived"),
    )

    def __init__(self, size, origin, hint, number, backwards, recorded, ran: Known | None = None):
        self.ran = ran
        self.argument_of: tuple[Known, ...] = ()
        self.holders: tuple[Known, ...] = ()
        self.parameters: tuple[Held, ...] = ()
        self.recorded = recorded
        self.size = size
        self.origin = origin
        self.hint = hint
        self.number = number
        self.backwards = backwards  # passes that had begun before
        self.owner: str | None = None
        self.survived = False  # whether it lived when the next backward pass began

    def part(self) -> str:
        """Returns the part of the page that it belongs to."""
        if self.owner is not None:
            return self.owner
        if self.hint is not None:
            return TEMPORARIES if self.hint is COPIES else self.hint
        if self.origin.stage == FORWARD and self.survived:
            return ACTIVATIONS
        return TEMPORARIES

    def module(self) -> tuple[str, str, str] | None:
        """Returns model, name and class of the module that it belongs to, None if it belongs to none."""
        holders = [one for held in (self, *self.parameters) for one in held.holders]
        if not holders and self.owner is None and self.ran is not None:
            holders = [self.ran]
        return common(holders)


@dataclass(frozen=True)
class Failure:
    """Describes an allocation that failed: bytes requested from the device, free and missing, and the error's text."""

    asked: int
    free: int
    text: str


class Moment:
    """The memory at one moment: the blocks `held`, bytes allocated and reserved, the last request and its stack."""

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
    allocation that failed, and `failure`, None if none has; `failures`: how many have; `failing`: the code objects on
    the stack then. `served`: whether an allocation succeeded after that. `reserved`: most bytes of all segments.
    `requests`: the record of all requests. `model`: bytes of the module that was being moved when an allocation failed,
    `building`: whether one was being built or moved then, `autocast`: whether autocast was on. `dtypes`: bytes of the
    parameters by dtype. `step_sizes`: bytes allocated and reserved after each optimizer step. `grown`: what grows with
    each `grown_per`. It keeps no tensor alive, and its own work allocates no GPU memory.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.peak: Moment | None = None
        self.failed: Moment | None = None
        self.failure: Failure | None = None
        self.failures = 0
        self.failing: frozenset = frozenset()
        self.served = True
        self.reserved = 0
        self.requests = Requests()
        self.grown: list[Grown] = []
        self.grown_per = ""
        self._growth = {STEP: Growth(), BACKWARD: Growth(), INPUT: Growth()}
        self._input: Origin | None = None  # the first one that the program makes inputs at
        self._inputs = 0
        self.timeline = Timeline()
        self.owners = Owners()
        self.modules = Modules(self._holds, lambda tensor: _block_of(tensor, machine) is not None)
        self.owners.on_modules = self.modules.name_all
        self._live: dict[int, Held] = {}
        self._gone: list[Held] = []  # lived at the peak, and does not any more
        self._origins: dict[tuple, Origin] = {}
        self._number = 0
        self._at_peak = 0
        self._allocated = 0
        self._task, self._backwards = -1, 0
        self._inner: tuple = ()
        self.model = 0
        self.building = False
        self.to_come = ""
        self.autocast = False
        self.dtypes: Counter = Counter()
        self.step_sizes: list[tuple[int, int]] = []
        self.checkpointing = False  # whether forward ran again in a backward pass
        self._last_ran: Known | None = None
        self._recorded = False  # whether autograd records the operator that runs
        self._settings = None  # read with the first request, because a script may set them until then
        self._marked = 0  # the number of the block at the peak when gradients were last looked for

    def __enter__(self) -> "Watch":
        allocator = self.machine.allocator
        self._inner = allocator.malloc, allocator.free, allocator.record_stream, allocator.empty_cache
        allocator.malloc, allocator.free = self._malloc, self._free
        allocator.record_stream, allocator.empty_cache = self._record_stream, self._empty_cache
        self.machine.before_memory = self._operator
        if allocator.used:
            self.requests.give_up("memory was allocated before the program began")
        self.owners.begin(self._mark, self._after_step)
        return self

    def __exit__(self, *error) -> None:
        self.owners.end()
        allocator = self.machine.allocator
        self.machine.before_memory = None
        allocator.malloc, allocator.free, allocator.record_stream, allocator.empty_cache = self._inner

    def close(self) -> None:
        """Finds the owners of the blocks that are alive now. Called before the program's objects are freed."""
        self.owners.look()
        allocator = self.machine.allocator
        if self._settings is not None and allocator.settings != self._settings:
            self.requests.give_up("the program changes the allocator's settings")
        if allocator.memory_fraction != 1:
            self.requests.give_up("the program limits its share of the GPU's memory")
        self._find_growth()

    # The allocator's calls

    def _operator(self, args) -> None:
        """Called before an operator allocates: notes whether autograd records it."""
        self._recorded = torch.is_grad_enabled() and _requires_grad(args)

    def _record_stream(self, block, stream: int) -> None:
        held = self._live.get(block.address)
        if held is not None:
            self.requests.use(held.number - 1, stream)
        self._inner[2](block, stream)

    def _empty_cache(self, *args, **kwargs) -> None:
        self.requests.empty_cache()
        self._inner[3](*args, **kwargs)

    def _malloc(self, nbytes: int, stream: int = 0):
        try:
            block = self._inner[0](nbytes, stream)
            if self._settings is None:
                self._settings = self.machine.allocator.settings
        except OutOfMemory as error:
            self.requests.failed(nbytes, stream)
            self._fail(error)
            raise
        if block is None:
            return None
        with self.machine.allocator_lock.lock:
            frame = sys._getframe(1)
            stage = self._stage()
            origin, hint = self._origin(frame, stage)
            self._number += 1
            recorded = self._recorded and origin.stage is FORWARD
            held = Held(block.size, origin, hint, self._number, self._backwards, recorded, self._ran(frame, stage))
            self._live[block.address] = held
            if hint is DATA and not self._backwards:
                self._tick(origin)
            self.served = True
            self.requests.malloc(nbytes, stream)
            if self.machine.allocator.pools.active:
                self.requests.give_up("the program uses private pools of memory")
            self._allocated += block.size
            reserved = self.machine.allocator.reserved
            self.reserved = max(self.reserved, reserved)
            self.timeline.add(held, self._allocated, reserved)
            if self.peak is None or self._allocated > self.peak.allocated:
                self._gone.clear()
                self._at_peak = self._number
                self.peak = self._moment(block.size, origin, frame)
        return block

    def _free(self, block) -> None:
        with self.machine.allocator_lock.lock:
            held = self._live.pop(block.address, None)
            if held is not None:
                self._stage()
                self.requests.free(held.number - 1)
                held.survived = held.survived or self._backwards > held.backwards
                self._allocated -= held.size
                if held.number <= self._at_peak:
                    self._gone.append(held)
                self.timeline.add(held, self._allocated, self.machine.allocator.reserved)
        self._inner[1](block)

    def _fail(self, error: OutOfMemory) -> None:
        self.failures += 1
        self.served = False
        frame = sys._getframe(2)
        self.failing = frozenset(codes_of(frame))
        origin, _ = self._origin(frame, self._stage())
        self.autocast = torch.is_autocast_enabled("cuda")
        self.building, self.model = model_of(frame)
        self.to_come = self._to_come(origin.stage)
        self.owners.look()
        free = self.machine.device.mem_get_info()[0]
        self.failure = Failure(error.alloc_size or error.size, free, str(error))
        self.failed = self._moment(self.failure.asked, origin, frame)
        self.failed.held = list(self._live.values())

    def _to_come(self, stage: str) -> str:
        """Why the program is known to need more than the request that failed, "" if it is not."""
        if self.building:
            return "the model was not complete"
        if stage is FORWARD and self._recorded:
            return "the forward pass was not complete"
        if stage in (BACKWARD, STEP) and not self.owners.steps:
            return "the first optimizer step was not complete"
        return ""

    # Stage, origin and owner

    def _stage(self) -> str:
        """Returns the stage of the program now, and counts a backward pass that is new."""
        task = torch._C._current_graph_task_id()
        if task not in (-1, self._task):
            self._task = task
            self._backwards += 1
            if self.owners.roots is None:  # else the optimizer's steps are enough
                torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self.owners.stepping:
            return STEP
        if torch.is_grad_enabled():
            return FORWARD  # also where a checkpoint computes again in backward
        return BACKWARD if task != -1 else NO_GRAD

    def _origin(self, frame, stage: str) -> tuple[Origin, Any]:
        found: Seen = seen(frame, _CODES, _WEAK)
        operator = self.machine.operator
        hint = found.code
        node = torch._C._current_autograd_node() if stage is BACKWARD else None
        named = "" if node is None else node.name()
        key = (operator, named, stage, found.own, found.library, hint is COPIES)
        origin = self._origins.get(key)
        if origin is None:
            name = "" if operator is None else operator._schema.name.removeprefix("aten::")
            origin = Origin(name, named, stage, found.own, found.library, hint is COPIES, tuple(stack(frame)))
            self._origins[key] = origin
        made = found.by_function and operator is not None and operator._schema.name in _FACTORIES
        if hint is None and made and stage is not BACKWARD and not calls_one(frame):
            hint = DATA  # a tensor that the program makes outside any module
        return origin, hint

    def _ran(self, frame, stage: str) -> Known | None:
        """Returns the module that runs, or whose backward runs; None if none does."""
        if stage is STEP:
            return None
        if stage is BACKWARD:
            return self.modules.of_node(torch._C._current_autograd_node())
        known = self.modules.running(frame)
        if self._recorded:
            self.modules.records(known)
            if known is not self._last_ran:
                self._last_ran = known
                self._note_arguments(frame)
        if not self.checkpointing and torch._C._current_graph_task_id() != -1:
            self.checkpointing = recomputes(frame)
        return known

    def _note_arguments(self, frame) -> None:
        """Notes of the blocks that modules on a stack got as arguments that these did."""
        for known, tensor in self.modules.arguments(frame):
            held = self._held_of(tensor)
            if held is not None and known not in held.argument_of:
                held.argument_of = (*held.argument_of, known)

    def _holds(self, tensor: torch.Tensor, known: Known) -> None:
        """Notes that a module holds a parameter or a buffer."""
        held = self._held_of(tensor)
        if held is not None and known not in held.holders:
            held.holders = (*held.holders, known)

    def _held_of(self, tensor: torch.Tensor) -> Held | None:
        block = _block_of(tensor, self.machine)
        return None if block is None else self._live.get(block.address)

    def _moment(self, asked, origin, frame) -> Moment:
        return Moment(
            self._allocated,
            self.machine.allocator.reserved,
            asked,
            origin,
            stack(frame),
            self.machine.clock.host,
            self.timeline.events,
            self.owners.steps,
        )

    def _mark(self, tensor: torch.Tensor, owner: str, parameter: object = None) -> None:
        """Notes the owner of a tensor's block. `parameter`: the one that a gradient or a state belongs to."""
        held = self._held_of(tensor)
        if held is None:
            return
        if isinstance(parameter, torch.Tensor):
            of = self._held_of(parameter)
            if of is not None and of not in held.parameters:
                held.parameters = (*held.parameters, of)
        if held.hint is GATHERED and owner is PARAMETERS:
            return  # a module holds it while it computes
        if held.owner is None:
            held.owner = owner
            if owner is PARAMETERS:
                self.dtypes[str(tensor.dtype).removeprefix("torch.")] += held.size

    def _after_backward(self) -> None:
        """Looks for gradients when a backward pass ends, if the peak has moved since the last look."""
        if not self.owners.steps:
            self._growth[BACKWARD].step(self._backwards, self._live.values())
        if self._marked != self._at_peak:
            self._marked = self._at_peak
            self.owners.after_backward(self._backwards)

    def _after_step(self, steps: int) -> None:
        """Called after each optimizer step: compares what is alive with the step before."""
        self._growth[STEP].step(steps, self._live.values())
        if len(self.step_sizes) < EVENTS:
            self.step_sizes.append((self._allocated, self.machine.allocator.reserved))

    def _tick(self, origin: Origin) -> None:
        """Takes the first input of an iteration as the point to compare, in a loop without backward passes."""
        self._input = self._input or origin
        if origin is self._input:
            self._inputs += 1
            self._growth[INPUT].step(self._inputs, self._live.values())

    def _find_growth(self) -> None:
        """Finds what grows with each step, backward pass or input, whichever the program has."""
        kind = STEP if self.owners.steps else BACKWARD if self._backwards else INPUT
        found = self._growth[kind].grown()
        holders.find(found, self._live, self.machine)
        self.grown = [one for one in found if one.origin is not self._input]
        self.grown_per = {STEP: "optimizer step", BACKWARD: "backward pass", INPUT: "input"}[kind]

    # What was found

    def at_peak(self, ran_out: bool) -> Moment | None:
        """The peak with what was alive then; or, if the program `ran_out` of memory, the moment of that error."""
        moment = self.failed if ran_out and self.failed is not None else self.peak
        if moment is not None and moment is self.peak:
            live = [one for one in self._live.values() if one.number <= self._at_peak]
            for one in live:  # of one that is gone it was told when it went
                one.survived = one.survived or self._backwards > one.backwards
            moment.held = live + self._gone
        for one in moment.held if moment is not None and moment is self.failed else ():
            one.survived = one.survived or one.recorded  # the backward pass that would tell did not come
        return moment


def _block_of(tensor: torch.Tensor, machine):
    """The block of a simulated tensor on this GPU, or None."""
    place = storage_map.of(tensor)
    return place.block if place is not None and place.machine is machine else None


def _requires_grad(args) -> bool:
    """Returns whether a tensor among an operator's arguments requires a gradient."""
    for one in args:
        if isinstance(one, torch.Tensor):
            if one.requires_grad:
                return True
        elif isinstance(one, (list, tuple)) and _requires_grad(one):
            return True
    return False


__all__ = ["ACTIVATIONS", "GRADIENTS", "STATES", "Failure", "Held", "Moment", "Origin", "Watch"]
