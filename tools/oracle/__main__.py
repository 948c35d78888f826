"""`python -m tools.oracle COMMAND`, from the repository's root; docs/oracle.md has what each command does."""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections import defaultdict

from tools.oracle import run as runner
from tools.oracle import store
from tools.oracle.build import build
from tools.oracle.drift import command as drift
from tools.oracle.op_info import command as op_info
from tools.oracle.report import Comparison, report
from tools.oracle.zoo import command as zoo

ERROR = re.compile(r"[\w.]+(?:Error|Exception)\b")  # the line of a traceback that says what happened


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; the exit status is 1 where a comparison differs or a workload failed."""
    options = _parser().parse_args(_run_apart(sys.argv[1:] if arguments is None else arguments))
    try:
        return options.do(options)
    except (FileNotFoundError, KeyError, RuntimeError, ValueError) as error:
        print(error.args[0] if error.args else error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.oracle", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, do, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(do=do)
        sub.add_argument("--torch", default=runner.DEFAULT_VERSION, help="version of torch (default %(default)s)")
        return sub

    sub = command("build", _build, "fetch torch's CUDA wheel and compile the stub libraries")
    sub.add_argument("--index", metavar="URL", help="the package index to take it from (default: PyPI)")
    command("list", _list, "name the workloads")

    sub = command(
        "run", _run, "run Python on the oracle: run [--gpu GPU] script.py arguments..., or -m module arguments..."
    )
    sub.add_argument("--gpu", default="A100-80GB")
    sub.add_argument("arguments", nargs="*")

    sub = command(
        "notebooks",
        _notebooks,
        "`course.py gpu` with the oracle in the GPU's place: notebooks [--gpu GPU] [notebooks, pytest's arguments]",
    )
    sub.add_argument("--gpu", default="A100-80GB")
    sub.add_argument("arguments", nargs="*", help="notebooks, all by default, and what pytest is given")

    sub = command("record", _record, "record workloads on the oracle and keep their traces in tests/data/oracle")
    _workloads(sub)

    sub = command("compare", _compare, "hold the simulated GPU against the oracle, workload by workload")
    _workloads(sub)
    _report(sub)
    sub.add_argument("--known", action="store_true", help="the workloads of tests/data/oracle/equal.txt")
    sub.add_argument("--keep", action="store_true", help="add what is equal to tests/data/oracle/equal.txt")
    sub.add_argument("--fresh", action="store_true", help="run the oracle again, whatever is stored")

    sub = command("compare-code", _compare_code, "the same for a snippet; torch, nn, F and stage(name) are at hand")
    sub.add_argument(
        "code",
        help='e.g. "x = torch.randn(1000, 1000, device=\'cuda\'); y = x.sum(0)"; "-" reads it from stdin',
    )
    sub.add_argument("--gpu", default="A100-80GB")
    sub.add_argument("--events", action="store_true", help="print the oracle's events first")
    sub.add_argument("--values", action="store_true", help="the simulated GPU has the values of all tensors")
    _report(sub)

    sub = command("drift", _drift, "sort by cause what another version of torch does otherwise on the stored workloads")
    _workloads(sub)
    drift.arguments(sub)

    sub = command("op-info", op_info.do, "hold PyTorch's own operator, module and optimizer samples against the oracle")
    op_info.arguments(sub)

    sub = command("zoo", zoo.do, "hold models of transformers, timm, torchvision, and frameworks against the oracle")
    zoo.arguments(sub)

    sub = command("proved", _proved, "write simgpu/data/operators.json from what op-info --keep has found")
    sub.add_argument("--gpu", action="append", help="default: every GPU of which op-info --keep has left something")
    sub.add_argument("--workloads", action="store_true", help="the workloads of equal.txt too")
    return parser


def _workloads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", nargs="*", help="names or patterns like 'bert_*'; all by default")
    parser.add_argument("--gpu", action="append", help="A100-80GB or H100, may be given twice (default A100-80GB)")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, default=2, help="events shown around a difference (default %(default)s)")
    parser.add_argument("--limit", type=int, default=5, help="differences shown (default %(default)s)")
    parser.add_argument("--brief", action="store_true", help="verdicts only")


def _names(patterns: list[str]) -> list[str]:
    """The workloads that the patterns mean, each once; raises KeyError for a pattern that means none."""
    from tools.oracle.workloads import WORKLOADS, find, ranks

    names: dict[str, None] = {}
    for pattern in patterns or ["*"]:
        matching = fnmatch.filter(ranks.WORKLOADS if pattern.startswith(ranks.PREFIX) else WORKLOADS, pattern)
        if not matching:
            find(pattern)
            matching = [pattern]
        names |= dict.fromkeys(matching)
    return list(names)


def _run_apart(arguments: list[str]) -> list[str]:
    """The command line with "--" before what `run` and `notebooks` pass on, which may begin with a dash (-m, -c)."""
    if arguments[:1] not in (["run"], ["notebooks"]):
        return arguments
    own = 1
    while own < len(arguments) and arguments[own].split("=")[0] in ("--gpu", "--torch", "-h", "--help"):
        own += 2 if arguments[own] in ("--gpu", "--torch") else 1
    return [*arguments[:own], "--", *arguments[own:]]


def _build(options) -> int:
    build(options.torch, options.index)
    print(f"ready: python -m tools.oracle run --torch {options.torch} script.py")
    return 0


def _list(options) -> int:
    print("\n".join(_names(["*", "ranks_*"])))
    return 0


def _run(options) -> int:
    return runner.run(options.torch, options.gpu, options.arguments)


def _notebooks(options) -> int:
    call = "course.command_gpu(course.Path(sys.executable), sys.argv[1:])"
    job = f"import sys; from tools import course; sys.exit({call})"
    return runner.run(options.torch, options.gpu, ["-c", job, *options.arguments])


def _record(options) -> int:
    names, failed = _names(options.workloads), 0
    for gpu in options.gpu or ["A100-80GB"]:
        for name, log in store.record(names, gpu, options.torch):
            failed += log is not None
            print(f"recorded {name}" if log is None else f"FAILED   {name}\n{_tail(log)}", flush=True)
    return int(failed > 0)


def _compare(options) -> int:
    gpus = options.gpu or ["A100-80GB"]
    causes: dict[str, list[str]] = defaultdict(list)
    differing = of = 0
    for gpu in gpus:
        names = store.known_equal(gpu) if options.known else _names(options.workloads)
        of += len(names)
        print(f"{gpu}, torch {options.torch}")
        for name, outcome in store.pairs(names, gpu, options.torch, options.fresh, runner.simulated_on(options.torch)):
            if (cause := _show(name, outcome, options)) is not None:
                causes[cause].append(name)
                differing += 1
            elif options.keep:
                store.keep_equal(gpu, [name])
    print(f"{of - differing} of {of} equal")
    if differing > 1:
        print("what each differs in first:")
    for cause, who in sorted(causes.items(), key=lambda item: -len(item[1])) if differing > 1 else ():
        print(f"  {len(who):3} × {cause}   {', '.join(who[:3])}{', ...' if len(who) > 3 else ''}")
    return int(differing > 0)


def _compare_code(options) -> int:
    code = sys.stdin.read() if options.code == "-" else options.code
    outcome = store.pair_of_code(code, options.gpu, options.torch, options.values, runner.simulated_on(options.torch))
    if options.events and not isinstance(outcome, str):
        for event in outcome[0].events:
            print(f"  {event.action:14} {event.size:>13}  {event.where}")
    return int(_show("code", outcome, options) is not None)


def _drift(options) -> int:
    return drift.do(options, _names(options.workloads))


def _show(name: str, outcome, options) -> str | None:
    """Print what became of one workload; what it differs in first, or None if it is equal."""
    if isinstance(outcome, str):
        errors = [line for line in outcome.splitlines() if ERROR.match(line)]
        cause = errors[-1][:200] if errors else _tail(outcome, 1)
        side = outcome.split(":", 1)[0]
        print(f"FAILED   {name} {side}: {cause if options.brief else _tail(outcome)}", flush=True)
        return f"failed {side}: {cause[:100]}"
    comparison = Comparison(*outcome)
    text = comparison.verdict() if options.brief else report(comparison, options.context, options.limit)
    print(text, flush=True)
    return None if comparison.equal else comparison.first()


def _proved(options) -> int:
    from tools.oracle.op_info import proved

    return proved.do(options)


def _tail(log: str, lines: int = 12) -> str:
    return "\n".join(log.strip().splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main())
