"""Estimates what activation checkpointing would save, from a run's own allocations and frees.

A checkpointed module saves only its inputs, and its forward runs again before its backward. So the estimate starts from
the run's record and removes what each module of a class saved, from the end of its forward to the beginning of its
backward. What other modules got as an argument stays, because it is their input, and a module's own arguments stay
until its backward. There the estimate adds the highest point of the module's forward. The highest point of all is the
estimate of the peak. This is done for each class that occurs more than once, and the one with the lowest peak is
chosen.

On a simulated H100, the estimated peak differed from that of a run with checkpoints by this share:

    Llama, 12 layers, bfloat16, 32,000 tokens of vocabulary     +0.6 %
    Llama, 12 layers, float32, 1,000 tokens of vocabulary        0.0 %
    Llama, 8 layers, autocast, three micro-batches              +0.3 %
    Llama, 6 layers of width 256, bfloat16                      -0.4 %
    GPT-2, float32                                              -0.2 %
    BERT, float32                                               +1.2 %
    8 layers of nn.TransformerEncoderLayer                      +2.3 %
    ResNet-50's bottlenecks, 32 images                          +2.4 %
    6 bottlenecks, 16 images of 128 × 128                       +5.9 %

All these peaks are simulated. The last one is too high by the gradient of one convolution, whose backward counts as
that of the module before it. tests/programs/simgpu/test_checkpointing.py runs this one, a small GPT-2 and a small
Llama.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from simgpu.report.owners import ACTIVATIONS, WORKSPACES
from simgpu.report.timeline import Timeline

if TYPE_CHECKING:
    from simgpu.report.modules import Known
    from simgpu.report.watch import Held

ERROR = 0.1
"""The uncertainty that a finding names, as a share of the estimated peak. It is above the largest of these errors."""
CLASSES = 8
"""Classes that are tried, those whose modules save most."""


@dataclass(frozen=True)
class Estimate:
    """What checkpointing each module of a class would save: the class, how many modules of it saved something, the
    bytes by which the peak would fall, and the bytes of the peak then.

    `stage`: where the peak would be then. `at_least`: whether the run ended before all of its activations were saved.
    """

    kind: str
    modules: int
    nbytes: int
    peak: int
    stage: str
    at_least: bool = False


@dataclass
class Call:
    """One call of a module in forward: its events, and the blocks that a checkpoint would not keep."""

    module: tuple[str, str]
    begin: int
    end: int = 0
    blocks: list[Held] = field(default_factory=list)
    inputs: list[Held] = field(default_factory=list)
    again: int = 0  # the event before which it is computed again
    forward: int = 0  # the most bytes that this takes


class Record:
    """A timeline whose events are all known. `curve`: bytes allocated after each event."""

    def __init__(self, log: list[Held]):
        self.log = log
        self.born: dict[int, int] = {}
        self.gone: dict[int, int] = {}
        changes = []
        for at, held in enumerate(self.log):
            new = id(held) not in self.born
            (self.born if new else self.gone)[id(held)] = at
            changes.append(held.size if new else -held.size)
        self.changes = changes
        self.curve = list(accumulate(changes))
        self.most = max(self.curve, default=0)

    def allocates(self, at: int) -> bool:
        """Returns whether an event is an allocation."""
        return self.changes[at] > 0 and self.born[id(self.log[at])] == at

    def until(self, held: Held) -> int:
        """Returns the event that frees a block, or the number of events for one that is never freed."""
        return self.gone.get(id(held), len(self.log))


def estimate(line: Timeline, kinds: dict[tuple[str, str], str], failed: int | None) -> Estimate | None:
    """Returns the estimate for the best class, None if no class that is repeated saves anything, or if the run is too
    long for its timeline to have every event.

    `kinds`: the class of each module by its model and name. `failed`: how many events came before the request that
    failed, None if memory did not run out. Then the estimate is of that moment.
    """
    if not line.log or line.events > len(line.log):
        return None
    record, ran_out = Record(line.log[:failed]), failed is not None
    found = [_of_class(record, kind, kinds, ran_out) for kind in _candidates(record, kinds)]
    saving = [one for one in found if one is not None and one.nbytes > 0]
    return max(saving, key=lambda one: (one.nbytes, one.modules), default=None)


def _candidates(record: Record, kinds: dict[tuple[str, str], str]) -> list[str]:
    """Returns the classes of which several modules were called and saved something, those that saved most first."""
    saved: Counter[str] = Counter()
    called = {known.kind for held in record.log for known in held.argument_of}
    modules: dict[str, set] = {}
    for held in {id(one): one for one in record.log}.values():
        if held.ran is None or held.part() != ACTIVATIONS:
            continue
        for kind, module in _outermost(held.ran, kinds).items():
            saved[kind] += held.size
            modules.setdefault(kind, set()).add(module)
    repeated = [kind for kind, _ in saved.most_common() if kind in called and len(modules[kind]) > 1]
    return repeated[:CLASSES]


def _outermost(known: Known, kinds: dict[tuple[str, str], str]) -> dict[str, tuple[str, str]]:
    """Returns for each class the outermost module of it that a module is inside of, or is."""
    found: dict[str, tuple[str, str]] = {}
    name = known.name or ""
    while True:
        key = known.model.label, name
        if key in kinds:
            found[kinds[key]] = key
        if not name:
            return found
        name = name.rpartition(".")[0]


def _of_class(record: Record, kind: str, kinds: dict, ran_out: bool) -> Estimate | None:
    inside: dict[int, tuple[str, str] | None] = {}

    def module_of(known: Known | None) -> tuple[str, str] | None:
        if known is None:
            return None
        if id(known) not in inside:
            inside[id(known)] = _outermost(known, kinds).get(kind)
        return inside[id(known)]

    calls = list(_calls(record, module_of))
    events = _backwards(record, module_of)
    for call in calls:
        call.again = _begin_of_backward(record, call, events.get(call.module, []))
    calls = [call for call in calls if call.blocks]
    for call in calls:
        call.forward = _forward(record, call)
    _find_inputs(record, calls)
    if not calls:
        return None
    peak, stage = _highest(record, calls, ran_out)
    return Estimate(kind, len({call.module for call in calls}), _now(record, ran_out) - peak, peak, stage, ran_out)


def _now(record: Record, ran_out: bool) -> int:
    """Returns the bytes that the estimate is compared with: of the peak, or of the moment when memory ran out."""
    return record.curve[-1] if ran_out else record.most


def _calls(record: Record, module_of) -> Iterator[Call]:
    """Yields the calls of modules in forward. A call lasts until something else than its module allocates."""
    call: Call | None = None
    for at, held in enumerate(record.log):
        if not record.allocates(at):
            continue
        module = module_of(held.ran) if held.origin.stage in ("forward", "without gradients") else None
        if call is not None and module != call.module:
            call.end = at
            yield _with_blocks(record, call, module_of)
            call = None
        if call is None and module is not None:
            call = Call(module, at)
        if call is not None:
            call.blocks.append(held)


def _with_blocks(record: Record, call: Call, module_of) -> Call:
    """Leaves of a call's blocks those that it saves for itself alone."""
    call.blocks = [
        held
        for held in call.blocks
        if held.part() == ACTIVATIONS
        and record.until(held) > call.end
        and all(module_of(known) == call.module for known in held.argument_of)
    ]
    return call


def _forward(record: Record, call: Call) -> int:
    """Returns the most bytes that a call's forward has at once, up to the last block that it saves: the rest is not
    computed again. A workspace stays, so it is not allocated again."""
    last = max(record.born[id(held)] for held in call.blocks)
    changes = (
        change
        for held, change in zip(record.log[call.begin : last + 1], record.changes[call.begin : last + 1], strict=True)
        if record.born[id(held)] >= call.begin and held.part() != WORKSPACES
    )
    return max(accumulate(changes))


def _find_inputs(record: Record, calls: list[Call]) -> None:
    """Finds the arguments of each call: blocks that were alive when it began, and that its module got."""
    of_module: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        of_module.setdefault(call.module, []).append(call)
    for held in {id(one): one for one in record.log}.values():
        got = {(known.model.label, known.name or "") for known in held.argument_of}
        for call in (one for module in got for one in of_module.get(module, ())):
            if record.born[id(held)] < call.begin <= record.until(held):
                call.inputs.append(held)


def _backwards(record: Record, module_of) -> dict[tuple[str, str], list[int]]:
    """Returns the events with which the backward of each module allocates."""
    found: dict[tuple[str, str], list[int]] = {}
    for at, held in enumerate(record.log):
        if held.origin.stage == "backward" and record.allocates(at):
            found.setdefault(module_of(held.ran), []).append(at)
    return found


def _begin_of_backward(record: Record, call: Call, events: list[int]) -> int:
    """Returns the event with which the backward of a call begins: its first allocation, or the first free of a block
    that the call saved. `events`: those with which the backward of its module allocates."""
    at = bisect_right(events, call.end)
    return min([record.until(held) for held in call.blocks] + events[at : at + 1], default=0)


def _highest(record: Record, calls: Iterable[Call], ran_out: bool) -> tuple[int, str]:
    """Returns the highest point without what checkpoints would not keep, in bytes, and its stage."""
    count = len(record.log)
    changes = [0] * (count + 1)
    for call in calls:
        for held in call.blocks:
            changes[call.end] -= held.size
            changes[min(call.again, record.until(held))] += held.size
    longer: dict[int, tuple[Held, int]] = {}
    for call in calls:
        for held in call.inputs:
            longer[id(held)] = held, max(call.again, longer.get(id(held), (held, 0))[1])
    for held, end in longer.values():
        if record.until(held) < end:
            changes[record.until(held)] += held.size
            changes[end] -= held.size
    curve = [one + less for one, less in zip(record.curve, accumulate(changes), strict=False)]
    if ran_out:
        return curve[-1], record.log[-1].origin.stage
    points = [(nbytes, held.origin.stage) for nbytes, held in zip(curve, record.log, strict=True)]
    for call in calls:
        if call.again < count:
            points.append((curve[call.again - 1] + call.forward, "backward"))
    return max(points, key=lambda point: point[0])
