"""The report of one run: a plain record that can be printed, stored, and compared with a second one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import simgpu
from simgpu.clock.estimates import TimeEstimate, estimated
from simgpu.device.machine import Machine
from simgpu.dispatch import costs
from simgpu.report import checkpointing, stored
from simgpu.report.files import File
from simgpu.report.findings import CACHE, Facts, Finding, findings, fragmented
from simgpu.report.modules import Module, rows, totals
from simgpu.report.owners import ACTIVATIONS, PARTS
from simgpu.report.placeholder_values import sentence
from simgpu.report.replays import Replays
from simgpu.report.speed import Speed
from simgpu.report.track import Description, Track
from simgpu.report.verdict import COMPLETED, FITS, OUT_OF_MEMORY, Verdict, verdict_of
from simgpu.report.watch import Held, Moment, Watch
from simgpu.torch_patches.build import INSTALLED


@dataclass(frozen=True)
class Line:
    """What one line of the program holds at the peak: bytes, in how many blocks, what part, and which operator took
    them in which stage. `stack`: the lines on the stack of the first such allocation, innermost first."""

    nbytes: int
    blocks: int
    part: str
    operator: str
    stage: str
    place: str
    library: str = ""
    stack: tuple[str, ...] = ()

    @classmethod
    def load(cls, found: dict) -> "Line":
        """Returns the line that was stored as JSON."""
        return cls(**{**found, "stack": tuple(found.get("stack", ()))})


@dataclass(frozen=True)
class Spot:
    """Where something happened: the operator and what it asked for, the stage, how many optimizer steps had been made,
    and the lines of the stack, innermost first."""

    operator: str
    asked: int
    stage: str
    steps: int
    place: str
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """A run's use of a simulated GPU's memory. Sizes in bytes, times in seconds of the simulated clock.

    `ending`: how the program ended: "completed", "out of memory" or "stopped" (by a different error). `smallest`: the
    smallest capacity that was found to fit, None if no other one was tried. `bounds`: reasons beyond `unmodeled` for
    which the figures are lower bounds. `engine`: the engine that ran the program, and why, where that was chosen.
    `unused`: why no GPU memory was used, where that is known. `findings`: what the memory shows, with remedies.
    `compared`: why no smaller capacity was tried. `to_come`: why the program is known to need more than the request
    that failed. `interrupted`: whether Ctrl-C ended the program.
    `peak`: most bytes allocated. `reserved`: most bytes of all segments. `nvidia_smi`: most bytes as nvidia-smi shows
    them, the CUDA context (`context`) included. `at`: where the peak is, or, where memory ran out, where that was.
    `parts`: what was alive then, by what it is. `lines`: the same, by the line that asked. `failure`: the bytes that
    were asked for in vain, those that were free, and PyTorch's text. `rank`: which one of how many the program was.
    `traffic`: of each kind of collective how many there were, the bytes of their messages, and the bytes that this rank
    sent for them. `not_in_nvidia_smi`: what its figure leaves out. `printed` is the page.
    `processes`: a report for each process that the program started and that used the GPU. `started`: sentences about
    processes that share a GPU, and about programs that were started and not simulated.
    `modules`: what each module holds at that moment, without the modules inside it. `module_totals`: with them, a row
    for each module that holds one of these. `timeline`: memory over the run, None if none was used. `command`:
    what was run, without the values of options whose names speak of secrets; `version`: that of simgpu.
    `answer`: of `simgpu fit`, the lines with the answer to what was asked, and `results` the same as data; `plan`: the
    plan; `needs`: the bytes that nvidia-smi would show if the GPU were large enough; `step`: seconds of a step on the
    simulated clock. `time`, `step_time`: the estimates from `seconds` and `step`, with their ranges; `speed`: tokens/s
    and MFU of a training step. These three are None where they are not known. `timed`: of the stub engine, what times
    are based on, or why there are none.
    """

    what: str
    gpu: str
    torch: str
    total_memory: int
    context: int
    ending: str
    peak: int
    reserved: int
    nvidia_smi: int
    at: Spot | None
    parts: dict[str, int]
    lines: tuple[Line, ...]
    unmodeled: str
    steps: int
    seconds: float
    ended: str = ""
    failure: tuple[int, int, str] | None = None
    caught: int = 0
    placeholder_values: tuple[tuple[str, str, int], ...] = ()
    sizes: tuple[tuple[str, str, int, bool], ...] = ()
    branches: tuple[tuple[str, str, int], ...] = ()
    files: tuple[File, ...] = ()
    values: bool = False
    simulated: bool = True
    written: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    rank: tuple[int, int] | None = None
    traffic: tuple[tuple[str, int, int, int], ...] = ()
    not_in_nvidia_smi: str = ""
    smallest: int | None = None
    bounds: tuple[str, ...] = ()
    unused: str = ""
    engine: str = ""
    findings: tuple[Finding, ...] = ()
    compared: str = ""
    to_come: str = ""
    interrupted: bool = False
    processes: tuple["Report", ...] = ()
    started: tuple[str, ...] = ()
    modules: tuple[Module, ...] = ()
    module_totals: tuple[Module, ...] = ()
    timeline: Track | None = field(default=None, repr=False)
    command: str = ""
    version: str = ""
    answer: tuple[str, ...] = ()
    results: dict = field(default_factory=dict)
    plan: dict = field(default_factory=dict)
    needs: int | None = None
    step: float = 0.0
    time: TimeEstimate | None = None
    step_time: TimeEstimate | None = None
    speed: Speed | None = None
    timed: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict: outcome, reason and bytes to spare."""
        return verdict_of(self)

    @property
    def outcome(self) -> str:
        """The verdict in a word: "fits", "does not fit", "failed" or "undecided"."""
        return self.verdict.outcome

    @property
    def fits(self) -> bool:
        """Returns whether the verdict is that it fits, with more to spare than is uncertain."""
        return self.outcome == FITS

    @property
    def completed(self) -> bool:
        """Returns whether the program got all the memory that it requested and ended normally, whatever the margin."""
        return self.ending == COMPLETED

    @property
    def status(self) -> int:
        """The exit status: 0 it fits, 1 it does not fit, 2 the program failed for another reason, 3 undecided."""
        return self.verdict.status

    def __str__(self) -> str:
        from simgpu.report.page import page

        return page(self)

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the verdict, the timeline, and what the peak is made of."""
        from simgpu.report.figure import in_notebook

        return in_notebook(self)

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        """Shows the page where IPython shows text."""
        printer.text(str(self))

    def document(self) -> dict:
        """Returns the report as plain data for JSON, with what follows from its fields (docs/report_json.md)."""
        fields = asdict(replace(self, processes=()))
        fields["processes"] = [one.document() for one in self.processes]
        return {
            "schema": stored.SCHEMA,
            "outcome": self.outcome,
            "status": self.status,
            "verdict": self.verdict.document(),
            **fields,
        }

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(stored.written(self.document()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Report":
        """What `save` wrote. ValueError for another file, with what it holds; OSError if it cannot be read."""
        wanted = "wanted the report.json of a run, which simgpu run --out FOLDER writes"
        found = stored.read(path, wanted)
        if not {"outcome", "gpu", "lines"} <= found.keys():
            raise ValueError(f"{path} holds {stored.named(found)}: {wanted}")
        try:
            return cls._of(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is a report, but of another version of simgpu, or changed ({error!r}): run the program again"
            ) from None

    @classmethod
    def _of(cls, found: dict) -> "Report":
        """The report that `save` has made these of."""
        for name in ("schema", "outcome", "status", "verdict"):  # the last three follow from the rest
            found.pop(name, None)
        found["lines"] = tuple(map(Line.load, found["lines"]))
        for name in ("modules", "module_totals"):
            found[name] = tuple(Module(**one) for one in found.get(name, ()))
        found["timeline"] = None if found.get("timeline") is None else Track.load(found["timeline"])
        if found["at"] is not None:
            found["at"] = Spot(**{**found["at"], "stack": tuple(found["at"]["stack"])})
        if found["failure"] is not None:
            found["failure"] = tuple(found["failure"])
        if found.get("rank") is not None:
            found["rank"] = tuple(found["rank"])
        found["findings"] = tuple(Finding(**{**one, "lines": tuple(one["lines"])}) for one in found.get("findings", ()))
        for name in (
            "placeholder_values",
            "sizes",
            "branches",
            "files",
            "written",
            "notes",
            "traffic",
            "bounds",
            "started",
            "answer",
        ):
            found[name] = tuple(tuple(one) if isinstance(one, list) else one for one in found.get(name, ()))
        found["files"] = tuple(File(*one) for one in found["files"])
        for name in ("time", "step_time"):
            found[name] = None if found.get(name) is None else TimeEstimate(**found[name])
        found["speed"] = None if found.get("speed") is None else Speed(**found["speed"])
        found["processes"] = tuple(map(cls._of, found.get("processes", ())))
        return cls(**found)


def report_of(watch: Watch, what: str, ending: str, **more) -> Report:
    """The report of what `watch` saw."""
    report, replayed = without_replays(watch, what, ending, **more)
    return replace(report, **replayed())


def without_replays(watch: Watch, what: str, ending: str, **more) -> tuple[Report, Callable[[], dict[str, Any]]]:
    """Returns the report of what `watch` saw without the fields that need replays, and a function that returns those.

    The fields are `smallest`, `compared` and `findings`. The function replays the run at its first call, and may be
    called when the simulated GPU is gone. The replays of a run can take as long as the run itself.
    """
    machine: Machine = watch.machine
    ran_out = ending == OUT_OF_MEMORY
    moment = watch.at_peak(ran_out)
    placeholder_values = machine.placeholder_values
    sizes = tuple((one.what, one.place, one.count, one.at_least) for one in placeholder_values or () if one.sizes)
    more["bounds"] = (*more.get("bounds", ()), *((sentence(sizes),) if sizes else ()))
    parts, lines = _parts(moment), lines_of(moment.held if moment else ())
    peak = watch.peak.allocated if watch.peak else 0
    unread = sorted(costs.unread & machine.unmodeled.names)
    if unread:
        counted = (
            f"in the time: operations of {', '.join(unread)}, of which some calls are timed by their memory traffic"
        )
        more["notes"] = (*more.get("notes", ()), counted)
    made = partial(
        Replays,
        watch.requests,
        machine.allocator.settings,
        machine.torch_version,
        context=machine.spec.context + machine.device.non_pytorch,
        capacity=machine.device.total_memory,
        reserved=watch.reserved,
    )
    modules = rows((one.module(), one.part(), one.size) for one in moment.held) if moment else ()
    reading = machine.clock.reading()
    report = Report(
        what=what,
        gpu=machine.spec.key,
        torch=INSTALLED,
        total_memory=machine.spec.total_memory,
        context=machine.spec.context,
        ending=ending,
        peak=peak,
        reserved=watch.reserved,
        nvidia_smi=watch.reserved + machine.spec.context if machine.has_context else 0,
        at=None if moment is None else _spot(moment),
        parts=parts,
        lines=lines,
        unmodeled=str(machine.unmodeled),
        not_in_nvidia_smi=machine.unmodeled.of_nvidia_smi,
        rank=None if machine.world is None else (machine.world.rank, machine.world.ranks),
        traffic=tuple((kind, one.count, one.nbytes, one.sent) for kind, one in _traffic(machine).items()),
        steps=watch.owners.steps,
        seconds=reading.seconds,
        time=estimated(reading, machine.spec.key, machine.clock.slowness),
        failure=(watch.failure.asked, watch.failure.free, watch.failure.text) if watch.failure and ran_out else None,
        caught=watch.failures - ran_out,
        placeholder_values=tuple((one.what, one.place, one.count) for one in placeholder_values or ()),
        sizes=sizes,
        branches=tuple((one.what, one.place, one.count) for one in placeholder_values or () if one.branches),
        to_come=watch.to_come if ran_out else "",
        modules=modules,
        module_totals=totals(modules, watch.modules.kinds),
        timeline=_track(watch, moment),
        version=simgpu.__version__,
        **more,
    )
    facts = facts_of(watch, report)

    @cache
    def replayed() -> dict[str, Any]:
        replays, found = made(), {}
        if ending == COMPLETED:
            found = {"smallest": replays.smallest(peak, report.reserved), "compared": replays.unusable}
        attempts = replays.under_settings() if fragmented(parts, report.reserved, peak, ran_out) else []
        return found | {"findings": findings(replace(facts, attempts=attempts))}

    return report, replayed


def facts_of(watch: Watch, report: Report) -> Facts:
    """The facts that findings are derived from."""
    machine, ran_out = watch.machine, report.ending == OUT_OF_MEMORY
    return Facts.from_report(
        report,
        model=watch.model if ran_out else 0,
        building=watch.building if ran_out else False,
        dtypes=watch.dtypes,
        autocast=watch.autocast,
        attention=machine.math_attention,
        fused_attention=any("scaled_dot_product" in name for name in machine.unmodeled.names),
        grown=watch.grown,
        grown_per=watch.grown_per,
        steps=tuple(watch.step_sizes),
        checkpointing=watch.checkpointing,
        checkpoints=_checkpoints(watch, report, ran_out),
    )


def _checkpoints(watch: Watch, report: Report, ran_out: bool) -> checkpointing.Estimate | None:
    """Returns what checkpointing would save, where saved activations are the largest part and nothing does it yet."""
    held = {part: nbytes for part, nbytes in report.parts.items() if part != CACHE}
    if watch.checkpointing or not held or max(held, key=lambda part: held[part]) != ACTIVATIONS:
        return None
    failed = watch.failed.event if ran_out and watch.failed is not None else None
    return checkpointing.estimate(watch.timeline, watch.modules.kinds, failed)


def _track(watch: Watch, moment: Moment | None) -> Track | None:
    """The timeline, with what is known of each block."""
    places: dict[int, tuple[str, str, str, str]] = {}

    def describe(held: Held) -> Description:
        origin = held.origin
        texts = places.get(id(origin))
        if texts is None:
            texts = str(origin), origin.stage, str(origin.own or ""), str(origin.library or "")
            places[id(origin)] = texts
        return Description(held.size, held.part(), *texts, (held.module() or ("", "", ""))[1])

    return None if moment is None else Track.of(watch.timeline, moment.event, describe)


def _traffic(machine: Machine) -> dict:
    return {} if machine.traffic is None else machine.traffic.by_kind()


def _spot(moment: Moment) -> Spot:
    return Spot(
        str(moment.origin),
        moment.asked,
        moment.origin.stage,
        moment.steps,
        str(moment.origin.own or moment.origin.library or ""),
        tuple(map(str, moment.stack)),
    )


def _parts(moment: Moment | None) -> dict[str, int]:
    """Bytes of each part at a moment, those that there are; their sum is what is reserved."""
    if moment is None:
        return {}
    sizes: Counter = Counter()
    for one in moment.held:
        sizes[one.part()] += one.size
    parts = {part: sizes[part] for part in PARTS if sizes[part]}
    return {**parts, CACHE: moment.reserved - moment.allocated}


def lines_of(held: list[Held] | tuple) -> tuple[Line, ...]:
    """Blocks by the line that allocated them, largest first."""
    stages: dict[tuple, Counter] = {}
    stacks: dict[tuple, tuple[str, ...]] = {}
    sizes: Counter = Counter()
    blocks: Counter = Counter()
    for one in held:
        key = (
            one.part(),
            str(one.origin),
            str(one.origin.own or ""),
            str(one.origin.library or ""),
        )
        if key not in stacks:
            stacks[key] = tuple(map(str, one.origin.stack))
        sizes[key] += one.size
        blocks[key] += 1
        stages.setdefault(key, Counter())[one.origin.stage] += one.size
    return tuple(
        Line(nbytes, blocks[key], part, operator, stages[key].most_common(1)[0][0], place, library, stacks[key])
        for key, nbytes in sizes.most_common()
        for part, operator, place, library in (key,)
    )
