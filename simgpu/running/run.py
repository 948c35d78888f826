"""Runs a program on a simulated GPU and reports what it took: `simgpu.run`, and the command `simgpu run`."""

import contextlib
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
from simgpu.report.sizes import parse
from simgpu.report.verdict import COMPLETED, OUT_OF_MEMORY, STOPPED
from simgpu.report.watch import Watch
from simgpu.running import clock, files
from simgpu.running.in_turn import in_turn
from simgpu.running.script import Script
from simgpu.running.steps import Limit, StepsDone
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
    report lists these. `steps`: the program ends after so many optimizer steps. `memory`: another capacity, in bytes or
    like "12 GiB". `out`: a folder for the page, a timeline, a snapshot and the report as JSON. `ranks`, `rank`: the
    program is one rank of so many, as torchrun would start it; `per_node`, `link`: GPUs of a machine, and what connects
    them (see `simgpu.one_rank`).

    `engine`: "meta", "stub" or "auto"; None is $SIMGPU_ENGINE or "auto" (docs/engines.md). `torch_version`: of the stub
    engine, "2.13.0".

    The program's output is its own. Raises ValueError for an unknown GPU, a rank or a link that there is not, a size
    that is none, `steps` below 1, and ScriptError (a ValueError) where there is no such program. An error of the
    program's is in the report, and is not raised.
    """
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps is a whole number of 1 or more, not {steps!r}")
    if (program is None) == (module is None):
        raise ValueError("wanted a script or a module, and one of them")
    chosen = engines.choose(engine, program, values=values, torch=torch_version)
    place = None if out is None else folder.prepare(Path(out))
    if chosen.stub is not None:
        if link is not None:
            raise ValueError("the stub engine has no clock, so a link changes nothing there")
        settings = {"gpu": gpu, "module": module, "steps": steps, "ranks": ranks, "rank": rank, "per_node": per_node}
        capacity = None if memory is None else parse(memory)
        name = None if program is None else str(program)
        return on_stubs(name, arguments, chosen=chosen, memory=capacity, out=place, **settings)
    said = str(chosen) if engine != "meta" else ""
    options = _options(values, memory) | {"ranks": ranks, "per_node": per_node, "link": link}

    def attempt(rank: int | None, asked: bool = True) -> Report:
        with simulated_gpu(gpu, rank=rank, **options):
            machine = machines.on()
            if not values:
                machine.stand_ins = StandIns()
            with Watch(machine) as watch, _Surroundings(watch, steps):
                if place is not None:
                    folder.record(machine)
                ended = _ended(watch, _prepared(program, module, arguments), values, asked)
                report = report_of(
                    watch, _name(program, module), ended.ending, ended=ended.text, values=values, engine=said
                )
                return report if place is None else folder.write(place, report, watch)

    return attempt(rank) if ranks is None else in_turn(attempt, rank or 0)


def _options(values: bool, memory) -> dict:
    options: dict = {} if memory is None else {"total_memory": parse(memory)}
    if values:
        if "values" not in inspect.signature(simulated_gpu.__init__).parameters:
            raise ValueError("this version of the simulated GPU computes no values; run it without them")
        options["values"] = True
    return options


class _Surroundings:
    """What a program has around it while it runs: the simulated clock, stand-ins for files, a limit of steps."""

    def __init__(self, watch: Watch, steps: int | None):
        self._patches = Patches()
        self._watch, self._steps = watch, steps

    def __enter__(self):
        machine = self._watch.machine
        clock.patch(self._patches, machine)
        if machine.stand_ins is not None:
            files.patch(self._patches, machine, machine.stand_ins)
        if self._steps is not None:
            Limit(self._steps, self._watch.owners).patch(self._patches)

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


def _ended(watch: Watch, surroundings, values: bool, asked: bool) -> _End:
    """Runs it, and says how it ended. What is alive at the end is looked at before it goes. `asked`: another rank may
    be asked for what this one waits for; Enough and NotSentError are raised then."""
    with surroundings as execute:
        try:
            execute()
            end = _End(COMPLETED)
        except StepsDone:
            made = watch.owners.steps
            end = _End(COMPLETED, f"Ended after {made} optimizer step{'s' * (made != 1)}, as --steps says.")
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


def _exit(error: SystemExit, watch: Watch) -> _End:
    if error.code in (None, 0):
        return _End(COMPLETED)
    if _of_memory(error, watch):
        return _End(OUT_OF_MEMORY, f"The program ended with status {error.code} after the error.")
    return _End(STOPPED, f"it ended with status {error.code}" + _of_values(watch))


def _failed(error: BaseException, watch: Watch, values: bool) -> _End:
    """An error that the program did not catch: its traceback is printed, without the simulated GPU's own frames."""
    error.__traceback__ = as_on_gpu(error.__traceback__)
    traceback.print_exception(error, file=sys.stderr)
    if _of_memory(error, watch):
        return _End(OUT_OF_MEMORY)
    said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if isinstance(error, NoValueError) and not values:
        return _End(STOPPED, said + "\nWith --values its tensors have values.")
    return _End(STOPPED, said + _of_values(watch))


def _of_values(watch: Watch) -> str:
    """A hint, if the program received stand-ins for values before it failed."""
    if not list(watch.machine.stand_ins or ()):
        return ""
    return "\nBefore that it received 0 in place of values (listed below), which may be why: --values computes them."


def _of_memory(error: BaseException | None, watch: Watch) -> bool:
    """Whether an error is one for want of memory, or came from one."""
    while error is not None and watch.failure is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False
