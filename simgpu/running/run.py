"""Runs a program on a simulated GPU and reports what it took: `simgpu.run`, and the command `simgpu run`."""

import contextlib
import dis
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from simgpu import engines
from simgpu import machine as machines
from simgpu.errors import NoValueError
from simgpu.patches import Patches
from simgpu.ranks.messages import Enough, NotSentError
from simgpu.report import folder
from simgpu.report.report import Report, report_of
from simgpu.report.sizes import capacity
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY, STOPPED
from simgpu.report.watch import Watch
from simgpu.running import builds, clock, files
from simgpu.running.in_turn import in_turn
from simgpu.running.script import Script, StepsDone
from simgpu.running.steps import Limit
from simgpu.running.stub.run import run as on_stubs
from simgpu.session import simulated_gpu
from simgpu.stand_ins import StandIns
from simgpu.tracebacks import as_on_gpu


def run(
    program: str | Path | Callable | None = None,
    arguments: Sequence[str] = (),
    *,
    gpu: str = "A100-80GB",
    module: str | None = None,
    values: bool = False,
    steps: int | None = None,
    backward_passes: int | None = None,
    memory: int | str | None = None,
    out: str | Path | None = None,
    ranks: int | None = None,
    rank: int | None = None,
    per_node: int | None = None,
    link: str | float | None = None,
    engine: str | None = "meta",
    torch_version: str | None = None,
) -> Report:
    """Runs a program, unmodified, on a simulated GPU, and reports what it did to the GPU's memory.

        report = simgpu.run("train.py", ["--batch-size", "8"], gpu="RTX 4090", steps=2)
        print(report)            # one page
        report.fits, report.peak, report.reserved, report.nvidia_smi, report.at, report.parts

    `program`: the path of a script; or a function, which is called with `arguments`; or `module`, as `python -m` takes
    it. `values`: whether tensors have values, computed on the CPU; without, what asks for one gets a zero, and the
    report lists these. `steps`: the program ends when each optimizer has made this many steps; `backward_passes`:
    before it makes one pass more than these, for a program without an optimizer. `memory`: another capacity, in bytes
    or like "12 GiB". `out`: a folder for the page, a timeline, a snapshot, the report as JSON, and, without `values`,
    for files that the program wrote and that hold simulated tensors (see simgpu/running/files). `ranks`, `rank`: the
    program is one rank of so many, as torchrun would start it; `per_node`, `link`: GPUs of a machine, and what connects
    them (see `simgpu.one_rank`).

    `engine`: "meta", "stub" or "auto"; None is $SIMGPU_ENGINE or "auto" (docs/engines.md). `torch_version`: of the stub
    engine, "2.13.0".

    The program's output is its own. Raises ValueError for an unknown GPU, a rank or a link that there is not, a size
    that is none, `steps` or `backward_passes` below 1, and ScriptError (a ValueError) where there is no such program.
    An error of the program's is in the report, and is not raised.
    """
    for name, given in (("steps", steps), ("backward_passes", backward_passes)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise ValueError(f"{name} is a whole number of 1 or more, not {given!r}")
    if (program is None) == (module is None):
        raise ValueError("wanted a script or a module, and one of them")
    chosen = engines.choose(engine, program, values=values, torch=torch_version)
    place = None if out is None else folder.prepare(Path(out))
    if chosen.stub is not None:
        if link is not None:
            raise ValueError("the stub engine has no clock, so a link changes nothing there")
        if backward_passes is not None:
            raise ValueError("the stub engine does not limit backward passes: --engine meta does")
        settings = {"gpu": gpu, "module": module, "steps": steps, "ranks": ranks, "rank": rank, "per_node": per_node}
        total = None if memory is None else capacity(memory)
        name = None if program is None else str(program)
        return on_stubs(name, arguments, chosen=chosen, memory=total, out=place, **settings)
    said = str(chosen) if engine != "meta" else ""
    options = _options(values, memory) | {"ranks": ranks, "per_node": per_node, "link": link}

    def attempt(rank: int | None, asked: bool = True) -> Report:
        with simulated_gpu(gpu, rank=rank, **options):
            machine = machines.on()
            if not values:
                machine.stand_ins = StandIns()
            with Watch(machine) as watch, _Surroundings(watch, steps, backward_passes, apart) as limit:
                if place is not None:
                    folder.record(machine)
                ended = _ended(watch, _prepared(program, module, arguments), values, asked, limit)
                more = {"ended": ended.text, "bounds": ended.bounds, "interrupted": ended.interrupted, "engine": said}
                more["files"] = apart.finish() if apart else ()
                report = report_of(watch, _name(program, module), ended.ending, values=values, **more)
            return report if place is None else folder.write(place, report, watch)

    with contextlib.nullcontext() if values else files.kept_apart(place and place / folder.FILES) as apart:
        return attempt(rank) if ranks is None else in_turn(attempt, rank or 0)


def _options(values: bool, memory) -> dict:
    options: dict = {} if memory is None else {"total_memory": capacity(memory)}
    if values:
        if "values" not in inspect.signature(simulated_gpu.__init__).parameters:
            raise ValueError("this version of the simulated GPU computes no values; run it without them")
        options["values"] = True
    return options


class _Surroundings:
    """What a program has around it while it runs: the simulated clock, the overlay over its files, a limit of steps."""

    def __init__(self, watch: Watch, steps: int | None, passes: int | None, apart: files.KeptApart | None):
        self._patches = Patches()
        self._watch, self._limit, self._apart = watch, Limit(watch.owners, steps, passes), apart

    def __enter__(self) -> Limit:
        machine = self._watch.machine
        clock.patch(self._patches, machine)
        if self._apart is not None:
            self._apart.patch(self._patches, machine)
        if self._limit.steps is not None or self._limit.passes is not None:
            self._limit.patch(self._patches)
        return self._limit

    def __exit__(self, *error):
        self._patches.undo()


def _prepared(program, module, arguments):
    """The context in which the program runs; it gives what runs it."""
    if callable(program):
        return contextlib.nullcontext(lambda: program(*arguments))
    return Script(None if program is None else str(program), arguments, module).as_main()


def _name(program, module) -> str:
    if callable(program):
        return f"{getattr(program, '__name__', 'the function')}()"
    return f"-m {module}" if module is not None else Path(str(program)).name


@dataclass(frozen=True)
class _End:
    ending: str
    text: str = ""
    bounds: tuple[str, ...] = ()
    interrupted: bool = False


def _ended(watch: Watch, surroundings, values: bool, asked: bool, limit: Limit) -> _End:
    """Runs it, and says how it ended. What is alive at the end is looked at before it goes. `asked`: another rank may
    be asked for what this one waits for; Enough and NotSentError are raised then."""
    with surroundings as execute:
        try:
            execute()
            end = _End(COMPLETED, limit.without_effect())
        except StepsDone as error:
            end = _End(COMPLETED, str(error), limit.unreached())
        except KeyboardInterrupt:
            end = _interrupted(watch)
        except SystemExit as error:
            end = _exit(error, watch)
        except Enough:
            raise
        except BaseException as error:
            if asked and isinstance(error, NotSentError):
                raise
            end = _failed(error, watch, values)
        watch.close()
    return end


def _interrupted(watch: Watch) -> _End:
    """Ctrl-C: what was found until then is shown, and no traceback."""
    made = watch.owners.steps
    text = f"Interrupted by Ctrl-C, after {made or 'no'} optimizer step{'s' * (made != 1)}."
    return _End(COMPLETED, text, ("it was interrupted, so the peak may come later",), interrupted=True)


def _exit(error: SystemExit, watch: Watch) -> _End:
    if error.code in (None, 0):
        return _End(COMPLETED)
    if _because_of_memory(error, watch):
        return _End(OUT_OF_MEMORY, f"The program ended with status {error.code} after the error.")
    return _End(STOPPED, f"it ended with status {error.code}" + _of_values(watch))


def _failed(error: BaseException, watch: Watch, values: bool) -> _End:
    """An error that the program did not catch: its traceback is printed, without the simulated GPU's own frames."""
    error.__traceback__ = as_on_gpu(error.__traceback__)
    traceback.print_exception(error, file=sys.stderr)
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if _because_of_memory(error, watch):
        raised_afresh = not isinstance(error, torch.OutOfMemoryError)
        return _End(OUT_OF_MEMORY, f"The program ended with {said}" if raised_afresh else "")
    if advice := builds.advice(error):
        return _End(STOPPED, f"{said}\n{advice}")
    if isinstance(error, NoValueError) and not values:
        return _End(STOPPED, said + "\nWith --values its tensors have values.")
    return _End(STOPPED, said + _of_values(watch))


def _of_values(watch: Watch) -> str:
    """A hint, if the program received stand-ins for values before it failed."""
    if not list(watch.machine.stand_ins or ()):
        return ""
    return "\nBefore that it received 0 in place of values (listed below), which may be why: --values computes them."


def _because_of_memory(error: BaseException, watch: Watch) -> bool:
    """Whether an error is one of memory, came from one, or was raised in its place.

    The last is so where no allocation succeeded after the last failed one, and the function that was running when that
    failed raises the error itself. A batch size finder does this when it has tried the smallest batch.
    """
    if watch.failure is None:
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        cause = cause.__cause__ or cause.__context__
    return not watch.served and _raised_by(error, watch.failing)


def _raised_by(error: BaseException, codes: frozenset) -> bool:
    """Whether one of these code objects raises the error with a statement of its own, or ends the program."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or place.tb_frame.f_code not in codes:
        return False
    if isinstance(error, SystemExit):
        return True
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return dis.opname[instruction] in ("RAISE_VARARGS", "RERAISE")
