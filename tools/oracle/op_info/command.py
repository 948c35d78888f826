"""`python -m tools.oracle op-info`: hold the simulated GPU against the oracle, operator by operator."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import NamedTuple

from tools.oracle.op_info import jobs, judge, runs


class Row(NamedTuple):
    """What became of one operator in one pass."""

    job: jobs.Job
    backward: bool
    outcomes: list[judge.Outcome]

    @property
    def verdict(self) -> str:
        return judge.verdict(self.outcomes)

    @property
    def worst(self) -> judge.Outcome | None:
        """The first sample that has the operator's verdict."""
        return next((one for one in self.outcomes if one.verdict == self.verdict), None)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("patterns", nargs="*", help="names or patterns: 'nn.functional.*', 'add', '/^[a-l]/'")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--suite", action="append", choices=jobs.SUITES, help="default: op")
    parser.add_argument("--dtype", action="append", choices=jobs.DTYPES, help="default: float32")
    parser.add_argument("--inplace", action="store_true", help="the in-place variants")
    parser.add_argument("--out", action="store_true", help="the variants with out=")
    parser.add_argument("--large", action="store_true", help="large samples")
    parser.add_argument("--all", action="store_true", help="every pass: all suites, dtypes, variants and sizes")
    parser.add_argument("--limit", type=int, default=3, help="samples shown of an operator (default %(default)s)")
    parser.add_argument("--brief", action="store_true", help="no events, and nothing of what is equal")
    parser.add_argument("--fresh", action="store_true", help="ask the oracle again")
    parser.add_argument("--keep", action="store_true", help="store the digests in tests/data/oracle_op_info")
    parser.add_argument("--list", help="write what is not equal to this file, a line each")


def do(options) -> int:
    """Do it; 1 where an operator differs or fails obscurely."""
    parts = chosen(options)
    plan = runs.plan(options.gpu, options.torch)
    rows: list[Row] = []
    for part in parts:
        found = compare(part, plan, options.patterns, options.gpu, options.torch, options.fresh)
        rows += found
        for text in told(found, options):
            print(text, flush=True)
        print(f"{part}, {options.gpu}: {summary(found)}", flush=True)
    if options.list:
        with open(options.list, "w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in listed(rows))
    if options.keep:
        from tools.oracle.op_info import digests, proved

        digests.keep(rows, options.gpu, options.torch)
        proved.keep(rows, options.gpu, options.torch)
    return int(any(row.verdict in ("differs", "obscure") for row in rows))


def chosen(options) -> list[str]:
    """The passes that the command line asks for."""
    if options.all:
        return jobs.parts(jobs.SUITES, jobs.DTYPES, jobs.VARIANTS, jobs.SIZES)
    variant = "inplace" if options.inplace else "out" if options.out else "plain"
    size = "large" if options.large else "small"
    return jobs.parts(options.suite or ["op"], options.dtype or ["float32"], [variant], [size])


def of_part(part: str, plan: dict, patterns: list[str]) -> list[tuple[jobs.Job, bool]]:
    """The jobs of a pass, and of each whether it has a backward."""
    found = []
    for name, can in plan[part.split("-")[0]].items():
        job = jobs.of_part(part, name)
        there = job.dtype in can["dtypes"] and (job.variant == "plain" or can[job.variant])
        if there and jobs.matches(name, patterns):
            found.append((job, job.dtype in can["backward"]))
    return found


def compare(part: str, plan: dict, patterns: list[str], gpu: str, version: str, fresh: bool = False) -> list[Row]:
    """Both sides of a pass."""
    asked = of_part(part, plan, patterns)
    if not asked:
        return []
    answers = runs.on_oracle(asked, gpu, version, fresh)
    ours = runs.on_simulated(asked, answers, gpu)
    return [
        Row(job, backward, judge.samples(job, answers[job], ours.get(job))) for job, backward in asked if job in answers
    ]


def summary(rows: list[Row]) -> str:
    """ "494 equal, 51 differ, ..." of operators and of samples."""
    operators = Counter(row.verdict for row in rows)
    samples = Counter(one.verdict for row in rows for one in row.outcomes)
    comparable = sum(operators.values()) - operators["apart"]
    text = ", ".join(
        f"{operators[verdict]} {verdict}" for verdict in ("equal", "differs", "told", "refused", "obscure")
    )
    return (
        f"of {comparable} operators {text}; {operators['apart']} set apart; "
        f"{samples['equal']} of {sum(samples.values()) - samples['apart']} samples equal"
    )


def told(rows: list[Row], options):
    """Of each operator a line, and what is around its first differences."""
    noisy = ("differs", "obscure")
    around = {} if options.brief else _around([row for row in rows if row.verdict in noisy], options)
    for row in rows:
        if options.brief and row.verdict == "equal":
            continue
        counts = Counter(one.verdict for one in row.outcomes)
        also = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        what = f"  {row.worst.what}" if row.worst is not None and row.worst.what else ""
        yield f"{row.verdict:8} {row.job.name}  ({also}){what if row.verdict != 'differs' or options.brief else ''}"
        if row.verdict in noisy and not options.brief:
            for outcome in [one for one in row.outcomes if one.verdict in noisy][: options.limit]:
                yield f"    sample {outcome.number}: {outcome.what}"
                yield from around.get((row.job, outcome.number), ())


def _around(rows: list[Row], options) -> dict:
    """The events around the first difference of each sample that differs in its events, with where they come from."""
    wanted = [
        (row.job, row.backward, [one.number for one in row.outcomes if one.at is not None][: options.limit])
        for row in rows
    ]
    wanted = [one for one in wanted if one[2]]
    if not wanted:
        return {}
    sides = runs.labelled(wanted, options.gpu, options.torch)
    places = {(row.job, one.number): one.at for row in rows for one in row.outcomes}
    found = {}
    for job, _, numbers in wanted:
        for number in numbers:
            texts = []
            for name, side in zip(("oracle", "here  "), sides, strict=True):
                for facts in side.get(job, {}).get("samples", ()):
                    if facts["number"] == number:
                        texts += _events(name, facts, places[job, number])
            found[job, number] = texts
    return found


def _events(side: str, facts: dict, at: int) -> list[str]:
    events = list(zip(facts.get("events", "").split(), facts.get("labels", ()), strict=False))
    return [
        f"      {side} {'>' if place == at else ' '} {events[place][0]:>14}  {events[place][1]}"
        for place in range(max(0, at - 2), min(at + 4, len(events)))
    ]


def listed(rows: list[Row]):
    """A line for each operator that is not equal: suite, operator, dtype, variant, size, verdict, first difference."""
    for row in rows:
        if row.verdict in ("differs", "obscure", "refused", "told"):
            job = row.job
            yield "\t".join((job.suite, job.name, job.dtype, job.variant, job.size, row.verdict, row.worst.what))
