"""`python -m tools.oracle zoo`: hold the simulated GPU against the oracle, model by model."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from simgpu.recording.trace import Trace
from tools.oracle import run, store
from tools.oracle.build import home
from tools.oracle.report import Comparison, report
from tools.oracle.zoo import answers, families, page
from tools.oracle.zoo.families import Entry

ERROR = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.*)", re.M)
APART = {
    "NoValueError": "needs values that are not known",
    "NotModelledError": "refused by name",
}
ALIKE = "on both sides alike"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("patterns", nargs="*", help="names of models or patterns: 'bert*'")
    parser.add_argument("--family", action="append", choices=families.FAMILIES, help="default: transformers")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--dtype", action="append", choices=families.DTYPES, help="default: fp32 and bf16")
    parser.add_argument("--mask", action="store_true", help="with a padding mask, where a model knows one")
    parser.add_argument("--cudnn", action="store_true", help="with cuDNN, which must run and cannot be equal")
    parser.add_argument("--context", type=int, default=2, help="events shown around a difference (default %(default)s)")
    parser.add_argument("--limit", type=int, default=1, help="differences shown of a model (default %(default)s)")
    parser.add_argument("--brief", action="store_true", help="verdicts only")
    parser.add_argument("--fresh", action="store_true", help="ask the oracle again")
    parser.add_argument("--quick", action="store_true", help="without the stacks of C++: several times as fast")
    parser.add_argument("--keep", action="store_true", help="store the traces of what is equal for the tests to replay")
    parser.add_argument("--page", action="store_true", help="note the results in docs/model_zoo.md")
    parser.add_argument("--list", action="store_true", help="name what there is, and run nothing")


def do(options) -> int:
    """Do it; 1 where a model differs or fails."""
    entries = chosen(options)
    if options.list:
        print("\n".join(entry.name for entry in entries))
        return 0
    causes: dict[str, list[str]] = defaultdict(list)
    equal = 0
    for entry, outcome in outcomes(entries, options.gpu, options.torch, options.fresh, options.quick):
        verdict, cause = judged(entry, outcome, options)
        print(verdict, flush=True)
        if options.page:
            page.note({entry.name: cause}, options.gpu, options.torch)
        if cause is None:
            equal += 1
            if options.keep:
                keep(entry, options.gpu)
        else:
            causes[cause].append(entry.name.removeprefix(families.PREFIX))
    print(f"{equal} of {len(entries)} equal, {options.gpu}, torch {options.torch}")
    for cause, names in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names):3} × {cause}   {', '.join(names)}")
    return int(equal < len(entries))


def chosen(options) -> list[Entry]:
    """The entries that the command line means. Raises ValueError if there are none."""
    entries = [
        entry
        for family in options.family or ["transformers"]
        for entry in families.names(family, tuple(options.dtype or ("fp32", "bf16")), (options.mask,), (options.cudnn,))
        if not options.patterns or any(fnmatch.fnmatch(entry.model, pattern) for pattern in options.patterns)
    ]
    if not entries:
        raise ValueError("nothing in the zoo is called that: python -m tools.oracle zoo --list --family FAMILY")
    return entries


def outcomes(
    entries: list[Entry], gpu: str, version: str, fresh: bool, quick: bool
) -> Iterator[tuple[Entry, tuple[Trace, Trace] | str]]:
    """Of each entry the oracle's and the simulated trace, or the log of the side that failed.

    The simulated GPU runs first, since the oracle is given its answers; once more, with the values of all tensors,
    where a model decides by values. What raises there is tried on the oracle too, where it may raise the same.
    """
    cache = home() / "traces" / version / gpu / "zoo"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ[answers.VARIABLE] = folder
        try:
            by_name = {entry.name: entry for entry in entries}
            failed = {name: log for name, log in run.record(by_name, gpu, scratch, quick=quick) if log is not None}
            asking = [name for name, log in failed.items() if "NoValueError" in log]
            once_more = run.record(asking, gpu, scratch, quick=quick, values=True)
            again = {name: log for name, log in once_more if log is not None}
            failed = {name: again.get(name, log) for name, log in failed.items() if name not in asking or name in again}
            raised = {name: log for name, log in failed.items() if _set_apart(log) is None}
            for name, log in failed.items():
                if name not in raised:
                    yield by_name[name], f"on the simulated GPU: {log}"
            running = {name: entry for name, entry in by_name.items() if name not in failed}
            known = {name: cache / f"{name}-{_key(entry, scratch)}.json.gz" for name, entry in running.items()}
            asked = [name for name in running if fresh or not known[name].exists()]
            for name in running:
                if name not in asked:
                    yield by_name[name], (Trace.load(known[name]), Trace.load(scratch / f"{name}.json.gz"))
            oracle = scratch / "oracle"
            for name, log in run.record([*asked, *raised], gpu, oracle, version=version, quick=quick):
                if name in raised:
                    alike = log is not None and _error(log) == _error(raised[name])
                    yield by_name[name], f"{ALIKE if alike else 'on the simulated GPU'}: {raised[name]}"
                    continue
                if log is not None:
                    yield by_name[name], f"on the oracle: {log}"
                    continue
                cache.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(oracle / f"{name}.json.gz", known[name])
                yield by_name[name], (Trace.load(known[name]), Trace.load(scratch / f"{name}.json.gz"))
        finally:
            del os.environ[answers.VARIABLE]


def _key(entry: Entry, scratch: Path) -> str:
    """Of which run a trace of the oracle is: the entry, and the answers that the oracle was given."""
    given = answers.path(entry.name)
    text = given.read_text() if given is not None and given.exists() else ""
    return hashlib.sha256((entry.source + text).encode()).hexdigest()[:16]


def judged(entry: Entry, outcome: tuple[Trace, Trace] | str, options) -> tuple[str, str | None]:
    """What is printed of an outcome, and its cause if it is not equal."""
    if isinstance(outcome, str):
        where = outcome.split(":")[0]
        kind, message = _error(outcome)
        told = f"{APART.get(kind, 'FAILS')} {where}: {kind}: {message[:200]}"
        verdict = f"{'APART' if kind in APART or where == ALIKE else 'FAILED':8} {entry.name}: {told}"
        if not options.brief:
            verdict += "\n" + "\n".join(f"      {line}" for line in outcome.strip().splitlines()[-12:])
        return verdict, f"{APART.get(kind, 'fails')} {where}: {kind} {message[:80]}"
    comparison = Comparison(*outcome)
    if comparison.equal:
        return comparison.verdict(), None
    text = comparison.verdict() if options.brief else report(comparison, options.context, options.limit)
    return text, comparison.first()


def _error(log: str) -> tuple[str, str]:
    """The type and the text of the error that a log ends with."""
    found = ERROR.findall(log)
    return found[-1] if found else ("", log.strip().splitlines()[-1])


def _set_apart(log: str) -> str | None:
    """Why a run of the simulated GPU with this log is set apart by name; None if it is not."""
    return APART.get(_error(log)[0])


def keep(entry: Entry, gpu: str) -> None:
    """Store the oracle's trace for the tests to replay."""
    cached = sorted(
        (home() / "traces").glob(f"*/{gpu}/zoo/{entry.name}-*.json.gz"), key=lambda path: path.stat().st_mtime
    )
    store.path(entry.name, gpu).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cached[-1], store.path(entry.name, gpu))
    store.keep_equal(gpu, [entry.name])
