"""Measures memory by stage: what each line of training added, held, and peaked at.

The ledger reads the counters of ``torch.cuda`` and NVML and makes no tensor of its own, so it works the same way on a
real GPU and on a simulated one.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pandas as pd
import torch

from labkit import guesses, plots
from labkit.formulas import block
from labkit.gpu import current, label, nvidia_smi, simulated_machine
from labkit.live_tensors import clean_baseline
from labkit.published import Figure
from labkit.units import MiB, mib, verdict, whole_bytes

__all__ = ["Ledger"]

NO_HISTORY = "no memory history: make the ledger with Ledger(history=True)"
NO_QUESTION = object()  # distinct from None and ..., which mean a question without a guess
COUNTERS = ("before", "added", "peak", "after", "reserved", "nvidia_smi")
QUESTIONS = {  # the question that a guess about a stage's counter answers
    "before": "allocated before {}",
    "added": "{} adds to allocated",
    "peak": "allocated peak in {}",
    "after": "allocated after {}",
    "reserved": "reserved after {}",
    "nvidia_smi": "nvidia-smi after {}",
}


@dataclass(frozen=True)
class Stage:
    """One stage, in bytes. All but ``nvidia_smi`` are counters of PyTorch's caching allocator."""

    name: str
    before: int
    """allocated when the stage began"""
    peak: int
    """the most bytes allocated at any moment within the stage"""
    after: int
    """allocated when it ended"""
    reserved: int
    """bytes in segments when it ended"""
    nvidia_smi: int | None
    """used on the whole device when it ended; None without a figure from NVML"""
    failed: str = ""
    """the exception that ended the stage, as text"""
    events: tuple[int, int] | None = None
    """the stage's range in the memory history: its first event, and the one after its last"""

    @property
    def added(self) -> int:
        """Returns after - before."""
        return self.after - self.before

    def row(self) -> dict[str, float | None]:
        """Returns the counters in MiB, with the unit in their names."""
        row = {}
        for counter in COUNTERS:
            size = getattr(self, counter)
            row[f"{counter.replace('_', '-')} (MiB)"] = None if size is None else size / MiB
        return row


@dataclass(frozen=True)
class Comparison:
    """A stage's measured bytes with a prediction and, if there is one, a recorded figure."""

    stage: str
    counter: str
    measured: int
    predicted: int
    recorded: Figure | None
    why: str

    def __str__(self) -> str:
        line = f"{self.stage}: predicted {mib(self.predicted, 3)}, measured {mib(self.measured, 3)}"
        return "; ".join(filter(None, (f"{line}, {verdict(self.measured, self.predicted)}", self.beside_recorded())))

    def question(self) -> str:
        """Returns the question that a guess answers: the stage and its counter."""
        return QUESTIONS[self.counter].format(self.stage)

    def beside_recorded(self) -> str:
        """Returns the recorded figure and how the measured one compares with it; "" if there is none."""
        if self.recorded is None:
            return ""
        return f"recorded {self.recorded.short()} MiB, {self.recorded.verdict(self.measured)}"

    def row(self) -> dict[str, object]:
        """Returns the comparison as a row of a table."""
        return {
            "counter": self.counter,
            "predicted": mib(self.predicted),
            "measured": mib(self.measured),
            "measured - predicted": verdict(self.measured, self.predicted),
            "recorded (MiB)": self.recorded.short() if self.recorded else "",
            "measured - recorded": self.recorded.verdict(self.measured) if self.recorded else "",
            "why": self.why,
        }


class Ledger:
    """Measures memory by stage.

    >>> ledger = Ledger()
    >>> with ledger("forward"):
    ...     y = model(x)
    >>> ledger["forward"].added
    176291840

    A new ledger frees cached segments and cuBLAS workspaces, so the first matmul allocates its workspace again. Raises
    :class:`labkit.live_tensors.DirtyBaseline`, which lists the tensors alive, if more than ``allow`` bytes remain
    allocated after that. ``history=True`` starts a new recording of PyTorch's memory history, for :meth:`timeline`.
    Raises ``RuntimeError`` without a GPU.
    """

    _newest: weakref.ref[Ledger] | None = None  # the ledger that the GPU's counters belong to

    def __init__(self, allow: int = 0, history: bool = False):
        current()
        self._machine = _weakly(simulated_machine())
        self.baseline = clean_baseline(whole_bytes(allow), sys._getframe(1))
        self.stages: dict[str, Stage] = {}
        self.comparisons: dict[tuple[str, str], Comparison] = {}
        self._open: str | None = None
        self._peak = 0
        self._history = history
        self._snapshot: Any = None  # PyTorch's snapshot after the last stage
        self._take_over()
        if history:
            torch.cuda.memory._record_memory_history(context=None, clear_history=True)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measures the ``with`` block as the stage ``name``.

        An exception passes through, and the stage is recorded with ``failed`` set. A name used before replaces that
        stage and those after it, and a line says so. Raises ``RuntimeError`` inside another stage.
        """
        if self._open is not None:
            raise RuntimeError(f'stage "{name}" begins inside stage "{self._open}"; end that one first')
        if name in self.stages:
            self._replace(name)
        self._take_over()
        before = torch.cuda.memory_allocated()
        self._peak = self.peak
        torch.cuda.reset_peak_memory_stats()
        first = self._event()
        self._open, failed = name, ""
        try:
            yield
        except BaseException as error:
            failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._open = None
            self.stages[name] = Stage(
                name,
                before,
                peak=torch.cuda.max_memory_allocated(),
                after=torch.cuda.memory_allocated(),
                reserved=torch.cuda.memory_reserved(),
                nvidia_smi=nvidia_smi(),
                failed=failed,
                events=None if first is None else (first, self._event() or first),
            )

    def __getitem__(self, name: str) -> Stage:
        """Returns the stage of that name; ``KeyError`` lists the measured stages."""
        if name not in self.stages:
            raise KeyError(f"no stage {name!r}; measured are {list(self.stages) or 'none yet'}")
        return self.stages[name]

    @property
    def peak(self) -> int:
        """Returns the most bytes allocated at any moment since the ledger was made, also between stages.

        It stops counting when another ledger is made or measures, or when another GPU is used.
        """
        counted = torch.cuda.max_memory_allocated() if self._counts else 0
        return max(self._peak, counted, *(stage.peak for stage in self.stages.values()))

    def compare(
        self,
        predicted: Mapping[str, int] | None = None,
        /,
        *,
        of: str = "added",
        guess: object = NO_QUESTION,
        recorded: Figure | str | None = None,
        why: str = "",
        **by_name: int,
    ) -> None:
        """Prints predicted and measured bytes of stages, and records them for :meth:`comparison`.

        >>> ledger.compare(forward=4 * 10_240 * 4096)
        forward: predicted 160.000 MiB, measured 168.125 MiB, +8.125 MiB

        With ``guess``, the reader's number or ``...``, all three are printed and :func:`labkit.guesses.score` counts
        the guess. Pass a stage whose name has a space as ``{"forward again": 0}``. ``of`` is the counter: before,
        added, peak, after, reserved or nvidia_smi. ``recorded`` is a figure of :mod:`labkit.published`, or its MiB as
        text. ``why`` explains the difference in the table. Raises ``ValueError`` for another counter, without a
        prediction, or with ``recorded`` or ``guess`` for several stages at once.
        """
        predictions = {**(predicted or {}), **by_name}
        if of not in COUNTERS:
            raise ValueError(f"a stage has {', '.join(COUNTERS)}; of={of!r} was given")
        alone = recorded is not None or guess is not NO_QUESTION
        if not predictions or (alone and len(predictions) > 1):
            raise ValueError(f"wanted a prediction (one alone with recorded= or guess=), was given {predictions}")
        figure = Figure(recorded) if isinstance(recorded, str) else recorded
        for name, size in predictions.items():
            measured = getattr(self[name], of)
            if measured is None:
                raise ValueError(f"NVML gives no figure on this machine, so {name!r} has no nvidia_smi")
            row = Comparison(name, of, measured, whole_bytes(size), figure, why)
            self.comparisons[name, of] = row
            if guess is NO_QUESTION:
                print(row)
                continue
            guesses.compare(row.question(), guess=guess, estimate=row.predicted, measured=measured)
            if row.recorded is not None:
                print(f"  {row.beside_recorded()}")

    def comparison(self) -> pd.DataFrame:
        """Returns every comparison made: predicted, measured and recorded MiB, the two verdicts, and the reason."""
        rows = list(self.comparisons.values())
        return _labelled(pd.DataFrame([row.row() for row in rows], index=[row.stage for row in rows]))

    def table(self) -> pd.DataFrame:
        """Returns a row per stage, in MiB; the index's name is the GPU and says whether it is simulated."""
        stages = self.stages.values()
        frame = pd.DataFrame([stage.row() for stage in stages], index=list(self.stages), dtype=float)
        if any(stage.failed for stage in stages):
            frame["failed"] = [stage.failed.partition(":")[0] for stage in stages]
        return _labelled(frame)

    def plot(self, about: str = ""):
        """Draws the stages: what each began with, added and peaked at. ``about`` names the model and its size."""
        return plots.stages(self.stages.values(), about)

    def timeline(self, about: str = "", title: str = ""):
        """Draws memory over the recorded events, with the stages. ``title`` states the finding.

        Raises ``RuntimeError`` without history.
        """
        if not self._history:
            raise RuntimeError(NO_HISTORY)
        curve = self.curve()
        return plots.timeline(self._snapshot, curve, self.stages.values(), about, title)

    def alive_at_peak(self, name: str) -> dict[int, int]:
        """Returns the requests alive at the stage's peak, {address: bytes}, in the order in which they were made.

        >>> [mib(size) for size in ledger.alive_at_peak("backward").values()]

        To find a tensor that still exists, look up its address, ``tensor.data_ptr()``. Raises ``RuntimeError`` without
        history.
        """
        first, last = self.span(name)
        return at_peak(self.trace, first, last)

    def events(self, name: str) -> pd.DataFrame:
        """Returns what the allocator did in the stage: alloc or free, the bytes requested, and MiB allocated after it.

        Raises ``RuntimeError`` without history.
        """
        first, last = self.span(name)
        trace = self.trace
        rows = [
            (event["action"].replace("_requested", ""), event["size"], total / MiB)
            for event, total in zip(trace[first:last], allocated(trace, self.baseline)[first:last], strict=True)
            if event["action"] in HELD
        ]
        return _labelled(pd.DataFrame(rows, columns=["action", "requested (B)", "allocated after it (MiB)"]))

    def span(self, name: str) -> tuple[int, int]:
        """Returns the index of the stage's first event, and the index after its last.

        Raises ``RuntimeError`` without history.
        """
        found = self[name].events
        if found is None:
            raise RuntimeError(NO_HISTORY)
        return found

    @property
    def trace(self) -> list[Any]:
        """Returns the allocator's recorded events, from PyTorch's snapshot after the last stage."""
        return self._snapshot["device_traces"][0]

    def curve(self) -> list[int]:
        """Returns the allocated bytes after each recorded event, for ``plots.runs``. Raises ``RuntimeError`` without
        history.
        """
        if not self._history:
            raise RuntimeError(NO_HISTORY)
        self._snapshot = self._snapshot or self._take()
        return [self.baseline, *allocated(self.trace, self.baseline)]

    @property
    def _counts(self) -> bool:
        """Returns whether the GPU's counters belong to this ledger, and not to a later one."""
        newest = Ledger._newest and Ledger._newest()
        return newest is self and self._machine() is simulated_machine()

    def _take_over(self) -> None:
        """Makes the counters belong to this ledger from now on; the previous one keeps its peak."""
        before = Ledger._newest and Ledger._newest()
        if before is self:
            return
        if before is not None:
            before._peak = before.peak
        Ledger._newest = weakref.ref(self)
        torch.cuda.reset_peak_memory_stats()

    def _event(self) -> int | None:
        """Returns the number of events in the memory history."""
        return len(self._take()["device_traces"][0]) if self._history else None

    def _take(self) -> Any:
        """Takes PyTorch's snapshot and stores it with the ledger, so that later events don't change its figure."""
        self._snapshot = torch.cuda.memory._snapshot()
        return self._snapshot

    def _replace(self, name: str) -> None:
        """Drops the stage and those after it, and prints that.

        If more is allocated than when the stage first began, cuBLAS's workspaces are freed. The first run allocated
        them, so this one does so again.
        """
        first = self.stages[name].before
        dropped = list(self.stages)[list(self.stages).index(name) :]
        for stage in dropped:
            del self.stages[stage]
        self.comparisons = {key: row for key, row in self.comparisons.items() if key[0] not in dropped}
        print(f"{name!r} is measured again; its row and those after it go: {', '.join(dropped)}")
        if torch.cuda.memory_allocated() > first:
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()
        if (before := torch.cuda.memory_allocated()) != first:
            print(
                f"  it begins with {mib(before)} allocated, the first time with {mib(first)}: what the"
                " first run left alive is in it, so the figures are not those of a fresh start"
            )


def _weakly(one: Any) -> Callable[[], Any]:
    """Returns a reference that does not keep `one` alive."""
    return (lambda: None) if one is None else weakref.ref(one)


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    frame.index.name = frame.attrs["gpu"] = label()
    return frame


HELD = {"alloc": 1, "free_requested": -1}  # the events at which a request starts and stops counting as allocated


def allocated(trace: Iterable[Mapping], start: int = 0) -> list[int]:
    """Returns the allocated bytes after each event of ``torch.cuda.memory._snapshot()["device_traces"][0]``.

    ``start`` bytes were allocated when the history began. Requests are rounded up to blocks of 512 B. The remainder
    that may stay with a large block (up to 1 MiB) is not in the history and not in the sum.
    """
    return list(accumulate((HELD.get(e["action"], 0) * block(e["size"]) for e in trace), initial=start))[1:]


def alive_after(trace: Iterable[Mapping]) -> dict[int, int]:
    """Returns the requests alive after the last event, {address: requested bytes}, in the order in which they were
    made.
    """
    living: dict[int, int] = {}
    for event in trace:
        if event["action"] == "alloc":
            living[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            living.pop(event["addr"], None)  # the default is for a block allocated before the history began
    return living


def at_peak(trace: list[Mapping], first: int, last: int) -> dict[int, int]:
    """Returns the requests alive at the peak of events ``first`` to ``last``, in the form of :func:`alive_after`."""
    curve = allocated(trace)
    highest = max(range(max(first - 1, 0), max(last, 1)), key=curve.__getitem__) if curve else 0
    return alive_after(trace[: highest + 1])
