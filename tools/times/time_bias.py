"""Summarizes how far the estimates are from published times on both halves, and writes docs/time_bias.md."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from simgpu.clock.estimates import HOST, NEW, TRAINING, Factor, digits, factor
from tools.times import candidates, inductor, pairs
from tools.times.fitted import DOCS, GPU_LIMITS, HOST_LIMITS, Compared, fit
from tools.times.pairs import Pair

PAGE, KEPT_OUT = DOCS / "time_bias.md", DOCS / "published_kept_out.json"
COMPILED = "eager or compiled"
FEW = 5
"""With fewer kept-out rows of a kind, their share within the range says little."""


@dataclass(frozen=True)
class Summary:
    """Holds what rows of one kind say. Errors are medians of absolute errors, as shares of the published time.

    clock: the error of the clock alone. estimate: the error with the factors. signed: the median of the estimate's
    errors with their sign. covered: share of the rows within their range. width: median of a range's upper end divided
    by its lower end.
    """

    work: str
    limit: str
    gpus: str
    rows: int
    sources: int
    clock: float
    estimate: float
    signed: float
    covered: float
    width: float


def limit_of(one: Compared) -> str:
    """Returns what limits a step, by the share of the clock's time that the host needs."""
    return "GPU" if one.issuing <= GPU_LIMITS else "host" if one.issuing >= HOST_LIMITS else "between"


def summaries(compared: Iterable[Compared], known: Sequence[Factor]) -> list[Summary]:
    """Returns a summary for each kind of work, and for each work and limit over all classes of GPUs."""
    groups: dict[tuple[str, str, str], list[Compared]] = defaultdict(list)
    for one in compared:
        for gpus in ("all", one.gpus):
            for limit in ("all", limit_of(one)):
                groups[one.row.kind, limit, gpus].append(one)
    return [_summary(key, groups[key], known) for key in sorted(groups)]


def _summary(key: tuple[str, str, str], rows: list[Compared], known: Sequence[Factor]) -> Summary:
    times = [one.times(known) for one in rows]
    errors = [middle / one.real - 1 for one, (middle, _, _) in zip(rows, times, strict=True)]
    inside = [low <= one.real <= high for one, (_, low, high) in zip(rows, times, strict=True)]
    numbers = (
        statistics.median(abs(one.reading.seconds / one.real - 1) for one in rows),
        statistics.median(map(abs, errors)),
        statistics.median(errors),
        statistics.mean(inside),
        statistics.median(high / low for _, low, high in times),
    )
    return Summary(*key, len(rows), len({one.row.source for one in rows}), *(round(one, 3) for one in numbers))


def signs(found: Iterable[Pair]) -> list[dict]:
    """Returns for each way how many pairs there are, and of how many the clock has the faster one."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for one in found:
        groups[one.way].append(one)
    return [
        {
            "way": way,
            "pairs": len(group),
            "right": sum(one.right for one in group),
            "apart": sum(bool(one.apart) for one in group),
            "apart_and_right": sum(bool(one.apart) and one.right for one in group),
        }
        for way, group in groups.items()
    ]


def store_kept_out(compared: Sequence[Compared], known: Sequence[Factor], failed: int = 0) -> None:
    """Stores what the half that is kept out says, without a time of any row."""
    found = {
        "rows": len(compared),
        "failed": failed,
        "factors": [asdict(one) for one in known],
        "kinds": [asdict(one) for one in summaries(compared, known)],
        "signs": signs(pairs.pairs(compared, known)),
    }
    KEPT_OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def kept_out() -> dict:
    """Returns what `store_kept_out` stored."""
    return json.loads(KEPT_OUT.read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _of_kinds(kinds: Iterable[Summary]) -> str:
    head = ["work", "limited by", "GPUs", "rows", "sources", "error of the clock", "of the estimate", "its sign"]
    head += ["within the range", "upper ÷ lower end"]
    rows = []
    for one in kinds:
        few = " (too few to say)" if one.rows < FEW else ""
        rows.append(
            [
                *(one.work, one.limit, one.gpus, str(one.rows), str(one.sources)),
                *(f"{one.clock:.0%}", f"{one.estimate:.0%}", f"{one.signed:+.0%}", f"{one.covered:.0%}{few}"),
                f"{one.width:.1f}",
            ]
        )
    return table(head, rows)


def _of_factors(known: Sequence[Factor]) -> str:
    rows = []
    for one in known:
        work = "the host's time" if one.work == HOST else f"the GPU's time, {one.work}"
        numbers = (f"{one.middle:.2f}", f"{one.low:.2f} to {one.high:.2f}", str(one.rows), str(one.sources))
        rows.append([work, one.gpus or "all", *numbers])
    return table(["factor on", "GPUs", "fitted", "range", "rows", "sources"], rows)


def _of_signs(half: str, counts: Iterable[dict]) -> list[list[str]]:
    return [
        [half, one["way"], f"{one['right']} of {one['pairs']}", f"{one['apart_and_right']} of {one['apart']}"]
        for one in counts
    ]


def _of_pairs(found: Iterable[Pair]) -> str:
    rows = [
        [one.way, one.what, f"{one.published:.2f}", f"{one.clock:.2f}", "yes" if one.right else "**no**"]
        for one in found
    ]
    return table(["ways", "work", "published: times faster", "clock", "sign right"], rows)


def page(compared: Sequence[Compared], known: Sequence[Factor]) -> str:
    """Returns the page."""
    out = kept_out()
    mine, elsewhere = pairs.pairs(compared, known), pairs.others()
    counts = _of_signs("fit", signs(mine)) + _of_signs("kept out", out["signs"])
    counts += _of_signs("neither", signs(elsewhere))
    kinds = [Summary(**one) for one in out["kinds"]]
    thin = [one for one in kinds if one.covered < 0.8 and one.rows >= FEW]
    return TEXT.format(
        fit=len(compared),
        kept=out["rows"],
        factors=_of_factors(known),
        mine=_of_kinds(summaries(compared, known)),
        out=_of_kinds(kinds),
        covered=_covered(kinds, thin),
        counts=table(["half", "ways", "sign right", "of those whose ranges are apart"], counts),
        pairs=_of_pairs([*mine, *elsewhere]),
        candidates=_of_candidates(compared),
        inductor=_of_inductor(compared, known),
    )


def with_launches(compared: Iterable[Compared], steps: Iterable[inductor.Step]) -> list[Compared]:
    """Returns the rows, with the stub engine's clock in place of the meta engine's for those that have a step."""
    by_row = {one.row: one for one in steps}
    return [
        dataclasses.replace(one, reading=by_row[one.row.name].reading, parts=by_row[one.row.name].parts)
        if one.row.name in by_row
        else one
        for one in compared
    ]


def _of_inductor(compared: Sequence[Compared], known: Sequence[Factor]) -> str:
    """Returns what the kernels that Inductor launches say about the compiled rows."""
    steps, others = inductor.stored()
    launched = with_launches(compared, steps)
    changed = [(one, other) for one, other in zip(compared, launched, strict=True) if one is not other]
    names = {one.row.name for one, _ in changed}
    errors = [[abs(_off(one, known)) for one in column] for column in zip(*changed, strict=True)]
    heads = ("row", "published", "clock: assumed fusion", "Inductor's kernels", "estimate: assumed fusion")
    heads = (*heads, "Inductor's kernels", "calls of attention", "with a mask")
    counts = {step.row: step.counts for step in steps}
    moved = _on_two_clocks(compared, launched, known)
    return INDUCTOR.format(
        rows=len(changed),
        sources=", ".join(sorted({one.row.source for one, _ in changed})),
        cards=", ".join(sorted({one.row.gpu for one, _ in changed})),
        table=table(heads, (_of_launched(one, other, counts[one.row.name], known) for one, other in changed)),
        before=f"{statistics.median(errors[0]):.0%}",
        after=f"{statistics.median(errors[1]):.0%}",
        pairs=table(
            ("pair", "published: times faster", "assumed fusion", "Inductor's kernels", "sign right", "ranges apart"),
            (_of_two_clocks(*pair) for pair in moved),
        ),
        right=sum(one.right for _, one in moved),
        was=sum(one.right for one, _ in moved),
        of=len(moved),
        gpus=NEW,
        fitted=f"{factor(TRAINING, NEW, known).middle:.2f}",
        refitted=f"{factor(TRAINING, NEW, fit(launched)).middle:.2f}",
        layered=sum(bool(step.depths) for step in steps if step.row in names),
        others=_of_kept_out_sources(others),
    )


def _on_two_clocks(
    compared: Sequence[Compared], launched: Sequence[Compared], known: Sequence[Factor]
) -> list[tuple[Pair, Pair]]:
    """Returns the pairs with a compiled row, on the meta engine's and on the stub engine's clock.

    Compiled rows that did not run on the stub engine are in no pair.
    """
    both = zip(compared, launched, strict=True)
    usable = [(one, other) for one, other in both if one.row.mode == "eager" or one is not other]
    before, after = (
        [pair for pair in pairs.pairs(rows, known) if pair.way == COMPILED] for rows in zip(*usable, strict=True)
    )
    return [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]


def _off(one: Compared, known: Sequence[Factor]) -> float:
    return one.times(known)[0] / one.real - 1


def _of_launched(one: Compared, other: Compared, counts: inductor.Counts, known: Sequence[Factor]) -> list[str]:
    """Returns the line of a row of the table; times in milliseconds."""
    row = one.row
    clocks = (digits(1e3 * each.reading.seconds) for each in (one, other))
    times = (f"{digits(1e3 * each.times(known)[0])} ({_off(each, known):+.0%})" for each in (one, other))
    name = f"{row.model}, {row.work}, {row.mode}, {row.gpu}"
    calls = ("–", "–") if counts.replays else (f"{counts.attentions:.0f}", f"{counts.masked:.0f}")
    return [name, f"{1e3 * one.real:.4g}", *clocks, *times, *calls]


def _of_two_clocks(before: Pair, after: Pair) -> list[str]:
    factors = (f"{value:.2f}" for value in (before.published, before.clock, after.clock))
    return [before.what, *factors, "yes" if after.right else "**no**", "yes" if after.apart else "no"]


def _of_kept_out_sources(found: Sequence[inductor.KeptOut]) -> str:
    if not found:
        return KEPT_OUT_NOT_RUN
    lines = ([one.source, str(one.rows), str(one.failed), f"{one.before:.0%}", f"{one.after:.0%}"] for one in found)
    heads = ("source", "rows", "did not run", "error of the estimate: assumed fusion", "Inductor's kernels")
    return KEPT_OUT_RUN + table(heads, lines)


def _of_candidates(compared: Sequence[Compared]) -> str:
    rows = candidates.chosen(compared)
    results = candidates.tested(rows)
    lines = [
        [one.name, ", ".join(f"{value:.2f}" for value in one.factors) or "–", f"{one.error:.0%}", f"{one.worst:.0%}"]
        for one in results
    ]
    best = min(results, key=lambda one: one.error)
    head = ["candidate", "factors", "error on sources that it was not fitted to", "of the worst source"]
    shares = (f"{name} {statistics.mean(_shares(rows, name)):.0%}" for name in candidates.PARTS)
    return CANDIDATES.format(rows=len(rows), table=table(head, lines), best=best.name, shares=", ".join(shares))


def _shares(rows: Iterable[Compared], part: str) -> list[float]:
    return [one.parts[candidates.PARTS.index(part)] / one.reading.seconds for one in rows]


def _covered(kinds: Sequence[Summary], thin: Sequence[Summary]) -> str:
    enough = [one for one in kinds if one.rows >= FEW]
    text = f"Of the {len(enough)} kinds with {FEW} or more kept-out rows, {len(enough) - len(thin)} have at least 80 % "
    text += "of them within the range."
    if thin:
        names = "; ".join(f"{one.work}, limited by {one.limit}, {one.gpus}: {one.covered:.0%}" for one in thin)
        text += f" The others: {names}."
    return text


CANDIDATES = """\
A candidate explains the bias if a factor of its own for that part of the time brings estimates closer to sources that
the factors were not fitted to. Each row below is fitted without one source and tested on it, in turn, over {rows} rows
of training that the GPU limits. The mean shares of the clock's time in them, where transfers run while kernels do:
{shares}.

{table}
The smallest error has: *{best}*. Where a candidate is not clearly below one factor for everything, the rows do not
show that its part of the time is what the clock gets wrong. All parts take longer alike, which a lower clock rate under
a power limit would cause. But no row states the clock rate, so this remains a guess. What the rows do show is the host:
steps that it limits take longer by the factor of the host above.
"""
INDUCTOR = """\
On the meta engine the clock assumes which operators Inductor fuses. `python -m tools.times.inductor` lets Inductor
decide: PyTorch's CUDA build compiles and runs the program of a row on the [stub engine](engines.md). Its clock has the
bytes that Inductor counts for each generated kernel, the matmuls and attention that are called, and CUDA graphs as one
launch. {rows} rows of the half that was fitted were run: of {sources}, on {cards}. Those of a Llama ({layered} of
them) ran with two and four layers, and their times are on the line through both. The constants above are fitted to the
clock with the assumed fusion, on rows that include some of these. Rows that did not run are not in the table.

Times in milliseconds; in parentheses, how far the estimate is from the published time. Calls inside of a CUDA graph
that is replayed (–) are not counted. Steps with a backward pass run with checkpointing, so each layer calls attention
three times: forward, again to recompute it, and backward.

{table}
The median of the absolute errors of these estimates is {before} with the assumed fusion, and {after} with Inductor's
kernels. Fitted to these clocks, the factor of training on {gpus} would be {refitted} in place of {fitted}.

**The mask.** In training, transformers reads from the positions of the tokens whether sequences are packed
(masking_utils.py, find_packed_sequence_indices). It cannot read them while Dynamo traces, so it gives attention a mask
where the eager program gives none. Attention with a mask computes the whole square, and causal attention without one
computes half. So a compiled step can have more work than an eager one, and the assumed fusion does not show it.

**Which is faster.** Pairs whose compiled programs were run. {right} of {of} signs are right, and {was} were with the
assumed fusion. Times of eager programs are those of the meta engine. The clock has one rate for all kernels of fused
attention. If those with a mask reach less, the steps with a mask take longer than it says.

{pairs}
{others}"""
KEPT_OUT_NOT_RUN = "No row of the half that is kept out was run in this way.\n"
KEPT_OUT_RUN = """\
**The half that is kept out.** No time of its rows is stored, only medians of the absolute errors.

"""
TEXT = """\
# Why the clock is too fast, and by how much

The simulated clock counts kernels, bytes and operations, and divides them by rates from short measurements. Published
steps take longer. This page says by how much, for which kinds of work, and what explains it. Nothing here was measured
by this project on a GPU: real times are {fit} published rows of the half that may be fitted, and {kept} of the half
that is kept out ([recordings/published_times.yaml](../recordings/published_times.yaml)).
`python -m tools.times.fitted` writes the page, and
[simgpu/data/time_factors.json](../simgpu/data/time_factors.json) with the constants.

## The fitted constants

An estimate is the longer of two times, because host and GPU work at once:

- the time in which the GPU works, times a factor for this kind of work, and
- the time that the host needs to issue operators, times a factor for the host.

What remains of the clock's time, in which neither works or they take turns, is added as it is.

{factors}
The factors are *fitted* to one half of the sources. Rows whose host needs at most 30 % of the clock's time are for the
GPU's factors, and rows whose host needs 60 % or more for the host's. Each source counts once, however many rows it has:
a factor is the median of the sources' medians. Its range is that in which nine of ten rows of a further source would
be, if logarithms of ratios were normal. A class of GPUs with fewer than ten rows, or in training with fewer than three
sources, has the factor of all GPUs. At the upper end of the range, the shorter of the GPU's and the host's time is
added, as if the two did not overlap.

## The half that was fitted

{mine}
## The half that was kept out

{out}
{covered}

## What each candidate explains

{candidates}
## What was looked at

The values of the factors and ranges come from the half that was fitted alone. But their form was chosen with rows of
the other half in view, which is a reservation about it. That host and GPU have factors of their own was seen in the
ratios of about 45 rows, 20 of them kept out. The rule for the ranges is the fourth that was tried, while summaries of
the first 27, and later 78, rows that are kept out were in view: the first covered too few of them, the second was far
too wide for the host, and the third covered too few rows in which host and GPU take about equally long. So the shares
within the ranges are not those of rows that nobody had seen, and a later source should test them.

## Which of two ways is faster

Pairs of published rows that differ in one way, and by more than 5 % in speed. The last column counts the pairs whose
two ranges do not overlap; only for these does a page of `simgpu diff` say which is faster.

{counts}
The pairs of the half that was fitted, and of [exactness.json](exactness.json):

{pairs}
## What Inductor launches

{inductor}"""
