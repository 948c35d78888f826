"""Memory by stage: what each line of training added, held, and peaked at.

The ledger reads the counters of ``torch.cuda`` and NVML, and makes no tensor of its own, so it says the same
on a real GPU and on the simulated one.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch

from labkit import guesses, history, plots
from labkit.baseline import clean_baseline
from labkit.gpu import current, label, simulated_machine
from labkit.nvml import nvidia_smi
from labkit.published import Figure
from labkit.stage import COUNTERS, Comparison, Stage
from labkit.units import MIB, mib, whole_bytes

NO_HISTORY = "no memory history: make the ledger with Ledger(history=True)"
NO_QUESTION = object()  # told from None and from ..., which are questions without a guess


class Ledger:
    """Memory by stage.

    >>> ledger = Ledger()
    >>> with ledger("forward"):
    ...     y = model(x)
    >>> ledger["forward"].added
    176291840

    Making one gives cached segments and cuBLAS workspaces back, so that the first matrix multiplication takes
    its workspace again. It refuses with :class:`labkit.baseline.DirtyBaseline` if more than ``allow`` bytes
    are allocated even so, naming what lives. With ``history=True`` PyTorch's memory history is recorded anew,
    for :meth:`timeline`. Raises ``RuntimeError`` without a GPU.
    """

    _newest: weakref.ref[Ledger] | None = None  # the one that the GPU's counters speak of

    def __init__(self, allow: int = 0, history: bool = False):
        current()
        self._machine = _weakly(simulated_machine())
        self.baseline = clean_baseline(whole_bytes(allow), sys._getframe(1))
        self.stages: dict[str, Stage] = {}
        self.comparisons: dict[tuple[str, str], Comparison] = {}
        self._open: str | None = None
        self._peak = 0
        self._history = history
        self._snapshot: Any = None  # PyTorch's, as the last stage left it
        self._take_over()
        if history:
            torch.cuda.memory._record_memory_history(context=None, clear_history=True)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as the stage ``name``.

        An exception passes through; the stage is kept, with ``failed`` set. A name used before replaces that
        stage and those after it, and says so. Raises ``RuntimeError`` inside another stage.
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
        """The stage of that name; ``KeyError`` lists the stages there are."""
        if name not in self.stages:
            raise KeyError(f"no stage {name!r}; measured are {list(self.stages) or 'none yet'}")
        return self.stages[name]

    @property
    def peak(self) -> int:
        """Most bytes allocated at any moment since the ledger was made, between stages too.

        It ends when another ledger is made or measures, or another GPU is taken.
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
        """Print predicted and measured bytes of stages side by side, and keep them for :meth:`comparison`.

        >>> ledger.compare(forward=4 * 10_240 * 4096)
        forward: predicted 160.000 MiB, measured 168.125 MiB, +8.125 MiB
        With ``guess``, the reader's number or ``...``, the three stand side by side and :func:`labkit.guesses.score`
        counts the guess.

        A stage whose name has a space goes in as ``{"forward again": 0}``. ``of`` is the counter: before,
        added, peak, after, reserved or nvidia_smi. ``recorded`` is a figure of :mod:`labkit.published`, or its
        MiB as text. ``why`` explains the difference in the table. Raises ``ValueError`` for another counter,
        without a prediction, or with ``recorded`` or ``guess`` for several stages at once.
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
            guesses.compare(row.question(), guess=guess, paper=row.predicted, measured=measured)
            if row.recorded is not None:
                print(f"  {row.beside_recorded()}")

    def comparison(self) -> pd.DataFrame:
        """Every comparison made: predicted, measured and recorded MiB, the two verdicts, and the reason."""
        rows = list(self.comparisons.values())
        return _labelled(pd.DataFrame([row.row() for row in rows], index=[row.stage for row in rows]))

    def table(self) -> pd.DataFrame:
        """A row per stage, in MiB; the name of the index says which GPU, and whether it is simulated."""
        stages = self.stages.values()
        frame = pd.DataFrame([stage.row() for stage in stages], index=list(self.stages), dtype=float)
        if any(stage.failed for stage in stages):
            frame["failed"] = [stage.failed.partition(":")[0] for stage in stages]
        return _labelled(frame)

    def plot(self, about: str = ""):
        """A figure of the stages: what each began with, added and peaked at. ``about``: the model and its size."""
        return plots.stages(self.stages.values(), about)

    def timeline(self, about: str = ""):
        """A figure of memory over the recorded events, with the stages; ``RuntimeError`` without history."""
        if not self._history:
            raise RuntimeError(NO_HISTORY)
        return plots.timeline(self._snapshot or self._take(), self.stages.values(), self.baseline, about)

    def alive_at_peak(self, name: str) -> dict[int, int]:
        """The requests alive when the stage had most allocated: {address: bytes}, in the order in which they were made.

        >>> [mib(size) for size in ledger.alive_at_peak("backward").values()]
        A tensor that is still held has its address: ``tensor.data_ptr()``. Raises ``RuntimeError`` without history.
        """
        first, last = self.span(name)
        return history.at_peak(self.trace, first, last)

    def events(self, name: str) -> pd.DataFrame:
        """What the allocator did in the stage: alloc or free, the bytes requested, and MiB allocated after it.

        Raises ``RuntimeError`` without history.
        """
        first, last = self.span(name)
        trace = self.trace
        rows = [
            (event["action"].replace("_requested", ""), event["size"], total / MIB)
            for event, total in zip(trace[first:last], history.allocated(trace, self.baseline)[first:last], strict=True)
            if event["action"] in history.HELD
        ]
        return _labelled(pd.DataFrame(rows, columns=["action", "requested (B)", "allocated after it (MiB)"]))

    def span(self, name: str) -> tuple[int, int]:
        """The numbers of the stage's first event and of the one after its last.

        Raises ``RuntimeError`` without history.
        """
        found = self[name].events
        if found is None:
            raise RuntimeError(NO_HISTORY)
        return found

    @property
    def trace(self) -> list[Any]:
        """The recorded events of the allocator, as PyTorch's snapshot has them after the last stage."""
        return self._snapshot["device_traces"][0]

    def curve(self) -> list[int]:
        """Allocated bytes after each recorded event, for ``plots.runs``; ``RuntimeError`` without history."""
        if not self._history:
            raise RuntimeError(NO_HISTORY)
        self._snapshot = self._snapshot or self._take()
        return [self.baseline, *history.allocated(self.trace, self.baseline)]

    @property
    def _counts(self) -> bool:
        """Whether the GPU's counters speak of this ledger, and of no later one."""
        newest = Ledger._newest and Ledger._newest()
        return newest is self and self._machine() is simulated_machine()

    def _take_over(self) -> None:
        """From here on the counters speak of this ledger; the one before keeps its peak."""
        before = Ledger._newest and Ledger._newest()
        if before is self:
            return
        if before is not None:
            before._peak = before.peak
        Ledger._newest = weakref.ref(self)
        torch.cuda.reset_peak_memory_stats()

    def _event(self) -> int | None:
        """How many events the memory history holds."""
        return len(self._take()["device_traces"][0]) if self._history else None

    def _take(self) -> Any:
        """PyTorch's snapshot of now; it stays with the ledger, so that what comes later does not change its figure."""
        self._snapshot = torch.cuda.memory._snapshot()
        return self._snapshot

    def _replace(self, name: str) -> None:
        """Drop the stage and those after it, and tell the reader.

        If more is allocated than when the stage first began, cuBLAS's workspaces are given back: the first run took
        them, so this one takes them again.
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
    """A reference that does not keep `one` alive."""
    return (lambda: None) if one is None else weakref.ref(one)


def _labelled(frame: pd.DataFrame) -> pd.DataFrame:
    frame.index.name = frame.attrs["gpu"] = label()
    return frame
