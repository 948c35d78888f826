"""Records in order what one rank's host issued to its GPU and its links: the log that `simgpu.together` plays.

While a log is recorded, a `RecordingClock` stands before the machine's clock and records each relevant call: launches,
copies, transfers, and waits. Times are the clock's seconds since the log began. A moment that is waited for is recorded
by its number, because it comes at a different time when several ranks are played together.
"""

import contextlib
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import torch

from simgpu.clock import rates
from simgpu.clock.clock import Capture, Clock
from simgpu.clock.communication import Transfer
from simgpu.device import machine as machines
from simgpu.gpus.specs import Spec

FORWARD, BACKWARD, WEIGHTS, GRADIENTS = "forward", "backward", "weights", "gradients"


class Piece(NamedTuple):
    """A named part of a rank's work: what it does for one micro-batch of one stage, or a range that the program named.

    `name` is for example "forward 3". `kind` is "forward", "backward", or "weights" if a schedule computes the weights'
    gradients separately from the inputs'. It is "gradients" when a stage's gradients are reduced and divided by the
    number of micro-batches, once per step, and "" for any other name. `stage` and `microbatch` are None if unknown.
    """

    name: str
    kind: str = ""
    stage: int | None = None
    microbatch: int | None = None


class Moment(float):
    """A time on the clock, with its number in the log."""

    number: int

    @classmethod
    def of(cls, time: float, number: int) -> "Moment":
        """Returns the moment `time`, with that number."""
        made = cls(time)
        made.number = number
        return made


@dataclass
class RankLog:
    """Holds what rank `rank` of `ranks` did on a GPU of model `spec`, with a host that is `slowness` times slower.

    `entries` are (what, arguments ...), in the order in which the host issued them.
    """

    rank: int
    ranks: int
    spec: Spec
    slowness: float
    entries: list[tuple]
    moments: int = 0

    def __repr__(self) -> str:
        return f"<log of rank {self.rank} of {self.ranks}: {len(self.entries):,} entries>"


class RecordingClock:
    """Stands before a machine's clock while its rank is recorded: passes calls on, and records those that matter.

    It has all attributes of the clock, whose state it reads and sets.
    """

    def __init__(self, clock: Clock, log: RankLog) -> None:
        self.__dict__.update(_clock=clock, _log=log, _at=clock.host)  # `_at`: the host's time after the last entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._clock, name, value)

    def _write(self, what: str, *arguments: Any) -> None:
        """Records what the host did since the last entry, and the next one."""
        if self.host > self._at:
            self._log.entries.append(("host", self.host - self._at))
        self._log.entries.append((what, *arguments))

    def _done(self, time: Any = None) -> Any:
        """Returns the time that a recorded call returned."""
        self.__dict__["_at"] = self.host
        return time

    def _number(self, time: float) -> Moment:
        self._log.moments += 1
        return self._done(Moment.of(time, self._log.moments - 1))

    def _captures(self, stream: Hashable) -> bool:
        return self.capture is not None and stream in self.capture.streams

    def launch(
        self, stream: int, work: float, kernels: int = 1, overhead: float = rates.OPERATOR, name: str = ""
    ) -> None:
        """Records an operator."""
        if self._captures(stream):
            return self._clock.launch(stream, work, kernels, overhead, name)
        self._write("launch", stream, work, kernels, overhead, name)
        return self._done(self._clock.launch(stream, work, kernels, overhead, name))

    def replay(self, stream: int, graph: Capture) -> None:
        """Records a captured CUDA graph as one launch."""
        Clock.replay(self, stream, graph)  # pyright: ignore[reportArgumentType]

    def copy(self, stream: int, nbytes: int, direction: str, *, pinned: bool, blocking: bool) -> None:
        """Records a copy between host and GPU."""
        self.settle()
        if self._captures(stream):
            return self._clock.copy(stream, nbytes, direction, pinned=pinned, blocking=blocking)
        self._write("copy", stream, nbytes, direction, pinned, blocking)
        return self._done(self._clock.copy(stream, nbytes, direction, pinned=pinned, blocking=blocking))

    def communicate(self, stream: int, own: Hashable, transfer: Transfer) -> float:
        """Records a collective, a send or a receive."""
        self.settle()
        if self._captures(stream):
            return self._clock.communicate(stream, own, transfer)
        self._write("transfer", stream, own, transfer, self._log.moments)
        return self._number(self._clock.communicate(stream, own, transfer))

    def record(self, stream: int) -> float:
        """Records an event."""
        self.settle()
        self._write("record", stream, self._log.moments)
        return self._number(self._clock.record(stream))

    def hold(self, stream: int, time: float) -> None:
        """Records that a stream waits for a moment."""
        self.settle()
        self._write("hold", stream, getattr(time, "number", None))
        self._done(self._clock.hold(stream, time))

    def synchronize(self, stream: int | None = None) -> None:
        """Records that the host waits for a stream, or for all."""
        self.settle()
        self._write("synchronize", stream)
        self._done(self._clock.synchronize(stream))

    def wait_until(self, time: float) -> None:
        """Records that the host waits for a moment; for one outside the log, the waiting time counts as host time."""
        if not isinstance(time, Moment):
            return self._clock.wait_until(time)
        self._write("wait", time.number)
        return self._done(self._clock.wait_until(time))

    def mark(self, what: str, piece: Piece) -> None:
        """Records the beginning or the end of a piece of work."""
        self.settle()
        self._write(what, piece)
        self._done()


@contextlib.contextmanager
def record_rank() -> Iterator[RankLog]:
    """Records what this rank does inside the `with`, for `simgpu.together`.

        logs = []
        for rank in range(4):
            with simgpu.simulated_gpu("H100", ranks=4, rank=rank):
                schedule = ...                          # of torch.distributed.pipelining, or a loop with send and recv
                with simgpu.record_rank() as log:
                    schedule.step(x)
                logs.append(log)
        timeline = simgpu.together(logs)

    It waits for the GPU first, so no work is pending when the log begins. Stages of torch.distributed.pipelining are
    recorded by name for each micro-batch, and so are ranges that the program names with torch.profiler.record_function.

    Raises RuntimeError if this process is not a rank of a world (`simgpu.one_rank`), or if a log is already being
    recorded.
    """
    machine = machines.current()
    if machine is None or machine.world is None:
        raise RuntimeError(
            "a log is one of a rank, and this process is none: say simulated_gpu(..., ranks=4, rank=0), or inside it "
            "`with simgpu.one_rank(0, of=4):`"
        )
    clock = machine.clock
    if isinstance(clock, RecordingClock):
        raise RuntimeError("a log of this rank is taken already")
    machine.synchronize()
    log = RankLog(machine.world.rank, machine.world.ranks, machine.spec, clock.slowness, [])
    recording: Any = RecordingClock(clock, log)
    machine.clock = recording
    try:
        with _names_of_pieces(recording):
            yield log
        clock.settle()
    finally:
        machine.clock = clock


_NUMBERED = re.compile(r"\s*(forward|backward)\D*(\d+)\s*", re.IGNORECASE)
_REDUCED = re.compile(r"PP:(\d+)REDUCE_GRAD")  # torch/distributed/pipelining/schedules.py, _get_profiler_function_name


def named(name: str) -> Piece:
    """Returns the piece of a range with this name: "Forward 3" is that of micro-batch 3."""
    if reduced := _REDUCED.fullmatch(name):
        return Piece(f"gradients of stage {reduced[1]}", GRADIENTS, int(reduced[1]))
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return Piece(name)
    return Piece(name, found[1].lower(), None, int(found[2]))


@contextlib.contextmanager
def _names_of_pieces(clock: RecordingClock) -> Iterator[None]:
    """Records the begin and the end of pieces of work: of pipeline stages, and of named ranges."""

    def around(method, piece_of):
        @wraps(method)
        def call(*args, **kwargs):
            piece = piece_of(*args, **kwargs)
            if piece is None:
                return method(*args, **kwargs)
            clock.mark("begin", piece)
            try:
                return method(*args, **kwargs)
            finally:
                clock.mark("end", piece)

        return call

    def marking(method, what):
        @wraps(method)
        def call(self, *args):
            if what == "begin":
                clock.mark("begin", named(self.name))
                return method(self, *args)
            try:
                return method(self, *args)
            finally:
                clock.mark("end", named(self.name))

        return call

    ranges = torch.autograd.profiler.record_function
    replaced = [
        (ranges, "__enter__", marking(ranges.__enter__, "begin")),
        (ranges, "__exit__", marking(ranges.__exit__, "end")),
    ]
    if torch.distributed.is_available():
        from torch.distributed.pipelining import schedules, stage

        stages, steps = stage._PipelineStageBase, schedules._PipelineSchedule
        replaced += [
            (owner, name, around(getattr(owner, name), piece_of))
            for owner, name, piece_of in (
                (stages, "forward_one_chunk", _forward),
                (stages, "backward_one_chunk", _backward),
                (stages, "backward_weight_one_chunk", _weights),
                (steps, "_maybe_compute_loss", _loss),
            )
        ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, function in replaced:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _of_stage(kind: str, stage, microbatch: int) -> Piece:
    return Piece(f"{kind} {microbatch}", kind, stage.stage_index, microbatch)


def _forward(stage, fwd_chunk_id, *args, **kwargs) -> Piece:
    return _of_stage(FORWARD, stage, fwd_chunk_id)


def _backward(stage, bwd_chunk_id, *args, **kwargs) -> Piece:
    return _of_stage(BACKWARD, stage, bwd_chunk_id)


def _weights(stage, bwd_chunk_id, *args, **kwargs) -> Piece:
    return _of_stage(WEIGHTS, stage, bwd_chunk_id)


def _loss(schedule, stage, output, target_mbs, mb_index, *args, **kwargs) -> Piece | None:
    """Returns the loss as a part of the last stage's forward pass, or None for other stages."""
    return _of_stage(FORWARD, stage, mb_index) if stage.is_last else None
