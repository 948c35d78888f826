"""Runs a program on a simulated GPU and reports what it took: `simgpu.run`, and the command `simgpu run`."""

import contextlib
import dataclasses
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from simgpu import engines
from simgpu.distributed.messages import Enough, NotSentError
from simgpu.report import folder, provenance
from simgpu.report.report import Report, report_of
from simgpu.report.sizes import capacity
from simgpu.running import files
from simgpu.running.child import Process
from simgpu.running.endings import End, ended_by
from simgpu.running.in_turn import in_turn
from simgpu.running.processes import Processes
from simgpu.running.script import Script
from simgpu.running.simulation import Simulated, simulation
from simgpu.running.stub.run import run as on_stubs
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
    them (see `simgpu.one_rank`). Without `ranks` the program sees `per_node` GPUs, for each of which it may start a
    process.

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
    for name, given in (("rank", rank), ("link", link)):
        if ranks is None and given is not None:
            raise ValueError(f"{name}={given!r} of how many ranks? Say ranks= too")
    options = {"--link": link}
    only_meta = next((name for name, given in options.items() if given is not None), "")
    chosen = engines.choose(engine, program, values=values, torch=torch_version, module=module, only_meta=only_meta)
    place = None if out is None else folder.prepare(Path(out))
    given = {"gpu": gpu, "memory": memory, "engine": chosen.name, "steps": steps, "backward-passes": backward_passes}
    given |= {"values": values or None, "ranks": ranks, "rank": rank, "per-node": per_node, "link": link}
    command = _command(given, program, module, arguments)
    if chosen.stub is not None:
        options = {"gpu": gpu, "module": module, "ranks": ranks, "rank": rank, "per_node": per_node}
        options |= {"steps": steps, "backward_passes": backward_passes}
        total = None if memory is None else capacity(memory)
        name = None if program is None else str(program)
        return on_stubs(name, arguments, chosen=chosen, memory=total, out=place, command=command, **options)
    said = str(chosen) if engine != "meta" else ""
    settings = {
        "gpu": gpu,
        "memory": None if memory is None else capacity(memory),
        "values": bool(values),
        "steps": steps,
        "backward_passes": backward_passes,
        "ranks": ranks,
        "per_node": per_node,
        "link": link,
    }

    def attempt(rank: int | None, asked: bool = True) -> Report:
        with contextlib.ExitStack() as leave:
            simulated = leave.enter_context(simulation(settings, rank, apart))
            others = leave.enter_context(Processes(settings))
            this = Process(others.folder, settings, simulated, leave, inside=True)
            if place is not None:
                folder.record(simulated.watch.machine)
            ended = _ended(simulated, _prepared(program, module, arguments), asked, this)
            found = others.collect()
            if found.reports and ended.text == simulated.limit.without_effect():
                ended = dataclasses.replace(ended, text="")  # the limit is for each process
            more = {"ended": ended.text, "bounds": ended.bounds, "interrupted": ended.interrupted, "engine": said}
            more["command"] = command
            more["files"] = apart.finish() if apart else ()
            report = report_of(simulated.watch, _name(program, module), ended.ending, values=values, **more)
            report = found.added_to(report)
            return report if place is None else folder.write(place, report, simulated.watch)

    with contextlib.nullcontext() if values else files.kept_apart(place and place / folder.FILES) as apart:
        return attempt(rank) if ranks is None else in_turn(attempt, rank or 0)


def _prepared(program, module, arguments):
    """The context in which the program runs; it gives what runs it."""
    if callable(program):
        return contextlib.nullcontext(lambda: program(*arguments))
    return Script(None if program is None else str(program), arguments, module).as_main()


def _command(options: dict, program, module, arguments: Sequence) -> str:
    """Returns the command that gives this run, or for a function the call."""
    if callable(program):
        return f"simgpu.run({_name(program, module).removesuffix('()')}, gpu={options['gpu']!r})"
    words = ["simgpu", "run"]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}"] if value is True else [f"--{name}", value]
    return provenance.command([*words, *(["-m", module] if module is not None else [program]), *arguments])


def _name(program, module) -> str:
    if callable(program):
        return f"{getattr(program, '__name__', 'the function')}()"
    return f"-m {module}" if module is not None else Path(str(program)).name


def _ended(simulated: Simulated, surroundings, asked: bool, this: Process) -> End:
    """Runs it, and says how it ended. What is alive at the end is looked at before it goes. `asked`: another rank may
    be asked for what this one waits for; Enough and NotSentError are raised then."""
    error = None
    with surroundings as execute:
        try:
            execute()
        except Enough:
            raise
        except BaseException as raised:
            if asked and isinstance(raised, NotSentError):
                raise
            error = raised
            if not isinstance(raised, (SystemExit, KeyboardInterrupt)):
                raised.__traceback__ = as_on_gpu(raised.__traceback__)
                traceback.print_exception(raised, file=sys.stderr)
        if this.is_child:
            this.leave_fork(error)
        simulated.watch.close()
    return ended_by(error, simulated)
