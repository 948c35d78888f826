"""The page that a run ends with: the verdict, the peak and what it consists of, findings, and what is not modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simgpu.report import files, placeholder_values, processes
from simgpu.report.sizes import MIB, mib, share, size
from simgpu.report.verdict import DOES_NOT_FIT, FAILED, FITS, OUT_OF_MEMORY, STOPPED, UNDECIDED, of_one, to_spare

if TYPE_CHECKING:
    from simgpu.report.report import Line, Report
    from simgpu.report.verdict import Verdict


LINES = 8  # the largest ones that are shown
STACK = 6


def page(report: Report) -> str:
    """Returns the page as text."""
    if report.processes:
        sections = [report.engine, processes.headline(report), *processes.sections(report, body)]
        sections += body(report) if report.nvidia_smi else []
    else:
        sections = [report.engine, headline(report), *body(report)]
    sections += [processes.started(report), files.section(report.files), _written(report)]
    text = "\n\n".join(section for section in sections if section) + "\n"
    return "\n".join([*report.answer, text])


def body(report: Report) -> list[str]:
    """Returns the sections that follow the verdict, about one process. Sections may be empty."""
    sections = [numbers(report), where(report), parts(report), lines(report), findings(report)]
    return [*sections, traffic(report), not_modelled(report), placeholder_values.section(report)]


def headline(report: Report) -> str:
    """The answer, in a sentence, and how the program ended."""
    gpu, what = f"a simulated {report.gpu}", report.what
    if report.rank is not None:
        what = f"{what}, as rank {report.rank[0]} of {report.rank[1]},"
    verdict = report.verdict
    if verdict.outcome == FAILED:
        first = f"{what} failed on {gpu}, and not because of memory: {report.ended}"
        until = f"{mib(report.nvidia_smi)} of {size(report.total_memory)}"
        return f"{first}\nUntil then it used {until}, as nvidia-smi shows it."
    if verdict.outcome == DOES_NOT_FIT:
        text = [f"{what} does not fit on {gpu}: {_failure(report)}."]
    elif verdict.outcome == FITS:
        aside = f"; {verdict.reason}" if verdict.reason else ""
        text = [f"{what} fits on {gpu}, with {to_spare(verdict)}{aside}."]
    else:
        text = [f"{what} on {gpu}: undecided, {verdict.reason}."]
        if report.failure:
            text.append(f"{sentence(_failure(report))}.")
    if report.ended:
        text.append(report.ended)
    if report.caught:
        text.append(f"{report.caught} allocation(s) failed, and the program caught the error and continued.")
    return "\n".join(text)


def _failure(report: Report) -> str:
    """The request that failed."""
    assert report.failure is not None
    asked, free, _ = report.failure
    at = f" at {report.at.place}" if report.at and report.at.place else ""
    operator = report.at.operator if report.at else "an allocation"
    return f"{operator}{at} asks for {size(asked)}, and {mib(free)} of {size(report.total_memory)} are free"


def numbers(report: Report) -> str:
    """Returns the counters; of a run that completed, as what the bytes to spare are made of."""
    rows = [("", *row) for row in counters(report)]
    margin = margin_rows(report)
    if margin:
        rows = [*margin, ("", "allocated, at the peak", report.peak, f"{report.peak:,} B")]
    text = [
        f"  {f'{sign} {name}'.strip():<24}{mib(nbytes):>12} MiB   {more}".rstrip() for sign, name, nbytes, more in rows
    ]
    return "\n".join([*(["To spare"] if margin else []), *text, *(f"  {line}" for line in made(report).splitlines())])


def counters(report: Report) -> list[tuple[str, int, str]]:
    """Returns names, bytes and remarks of the counters of a run that did not complete."""
    rows = [
        ("allocated, at the peak", report.peak, f"{report.peak:,} B"),
        ("reserved, at most", report.reserved, f"{report.reserved:,} B"),
    ]
    if report.nvidia_smi:
        context = f"with a CUDA context of {size(report.context)} (published, ±100)"
        rows.append(("nvidia-smi, at most", report.nvidia_smi, context))
    return rows


def margin_rows(report: Report) -> list[tuple[str, str, int, str]]:
    """Returns the parts of what is to spare, as signs, names, bytes and remarks; none for a run that did not complete.

    The other figures that answer "does it fit?" are remarks on the part that makes them different.
    """
    verdict = of_one(report)
    if verdict.margin is None or not report.reserved:
        return []
    margin = verdict.margin
    shown = f"with the context, nvidia-smi shows {_at_most(report)} {size(report.nvidia_smi)}"
    rows = [
        ("", "memory of the GPU", margin.total_memory, ""),
        ("−", "CUDA context", -margin.context, "published, ±100"),
        ("−", "reserved, at most", -margin.reserved, f"{report.reserved:,} B; {shown}"),
    ]
    if report.smallest:
        replayed = (
            f"the smallest capacity found to fit is {size(report.smallest)}, if the program asks for the same there"
        )
        rows.append(("+", "cache not needed", margin.cache, replayed))
    needed = f"±{verdict.uncertainty // MIB}; {_enough(verdict)}"
    return [*rows, ("=", "to spare", verdict.spare or 0, needed)]


def _enough(verdict: Verdict) -> str:
    """Returns which bytes to spare are enough."""
    least = verdict.uncertainty + verdict.set_aside
    if verdict.outcome == UNDECIDED and (verdict.spare or 0) >= least:
        return "it is undecided however large this is, because not all memory is known"
    aside = f", of which {size(verdict.set_aside)} are set aside for what is not modelled" if verdict.set_aside else ""
    return f"it fits if this is {size(least)} or more{aside}"


def _at_most(report: Report) -> str:
    """How the figure is to be read: "up to", or "at least" or "about" where it depends on what did not run."""
    if report.branches or not all(smallest for *_, smallest in report.sizes):
        return "about"
    return "at least" if report.unmodeled or report.bounds else "up to"


def made(report: Report) -> str:
    """Returns how many optimizer steps were made, in which time, and by which torch; then what times are based on."""
    clock = f" the run takes {report.time};" if report.time else ""
    if report.step_time and not report.plan:  # the answer about a plan names it
        clock += f" a step takes {report.step_time};"
    return "\n".join([f"{_steps(report.steps)};{clock} torch {report.torch}", *filter(None, [report.timed])])


def _steps(count: int) -> str:
    return f"{count or 'no'} optimizer step{'s' if count != 1 else ''}"


def where(report: Report) -> str:
    """The moment of the peak, or of the error."""
    at = report.at
    if at is None:
        return ""
    title = "Where memory ran out" if report.ending == OUT_OF_MEMORY else "Where the peak is"
    text = [title, f"  {at.operator}, {at.stage}, after {_steps(at.steps)}; it allocates {size(at.asked)}"]
    if report.ending == OUT_OF_MEMORY:
        text[1] = text[1].replace("it allocates", "it asks for")
    text += [f"    {place}" for place in at.stack[:STACK]]
    if len(at.stack) > STACK:
        text.append(f"    … {len(at.stack) - STACK} more")
        if at.place and at.place not in at.stack[:STACK]:
            text.append(f"    {at.place}   ← the innermost line of your own")
    return "\n".join(text)


def parts(report: Report) -> str:
    """The parts of the reserved memory at that moment."""
    if not report.parts:
        return ""
    whole = sum(report.parts.values())
    rows = [f"  {name:<34}{mib(nbytes):>12} MiB{share(nbytes, whole):>8}" for name, nbytes in report.parts.items()]
    rows.append(f"  {'reserved at that moment':<34}{mib(whole):>12} MiB")
    return "\n".join(["Memory by kind", *rows])


def lines(report: Report) -> str:
    """The lines that allocated it."""
    if not report.lines:
        return ""
    rows = [_line(one) for one in report.lines[:LINES]]
    rest = report.lines[LINES:]
    if rest:
        rows.append(f"  {mib(sum(one.nbytes for one in rest)):>12} MiB  of {len(rest)} other lines and operators")
    return "\n".join(["Allocated by", *rows])


def _line(line: Line) -> str:
    many = f" in {line.blocks} blocks" if line.blocks > 1 else ""
    where = line.library or line.place
    through = f", from {line.place}" if line.library and line.place else ""
    asked = f"\n{'':>20}{where}{through}" if where else ""
    return f"  {mib(line.nbytes):>12} MiB  {line.part}: {line.operator}{many}{asked}"


def findings(report: Report) -> str:
    """The findings, each with its remedy."""
    if not report.findings:
        return ""
    return "\n".join(["Findings", *(f"  - {sentence(str(one))}" for one in report.findings)])


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text


OTHERS = (
    "No tensor's values come from another rank. Where the program reads values, collectives gave it what they would if",
    "every rank had this one's: no loss or sum over ranks is that of a real run.",
)


def traffic(report: Report) -> str:
    """The bytes that a rank's collectives move."""
    if not report.traffic:
        return ""
    text = ["Sent by this rank, by the ring's formulas (collectives, bytes of their messages, bytes sent)"]
    for kind, count, nbytes, sent in report.traffic:
        text.append(f"  {kind:<20}{count:>8,}{mib(nbytes):>16} MiB{mib(sent):>16} MiB")
    if any(sent for *_, sent in report.traffic) or any(kind == "recv" for kind, *_ in report.traffic):
        text += [f"  {line}" for line in OTHERS]
    return "\n".join(text)


def not_modelled(report: Report) -> str:
    """Returns the section about what the figures do not include."""
    text = [f"  {report.unmodeled}"] if report.unmodeled else []
    text += [f"  at least: {one}" for one in report.bounds]
    text += [f"  {note}" for note in report.notes]
    if report.branches:
        lines = len({place for _, place, _ in report.branches})
        text.append(f"  what follows where a branch at {f'{lines} lines' if lines > 1 else '1 line'} depends on values")
    text += [f"  in nvidia-smi's figure: {report.not_in_nvidia_smi}"] if report.not_in_nvidia_smi else []
    if not text and report.reserved:
        until = "until the error " if report.ending == STOPPED else ""
        text = [f"  nothing: each operator that ran {until}was compared with PyTorch's CUDA code"]
        text = ["  nothing of PyTorch's own code"] if report.engine.startswith("Engine stub") else text
    if report.compared and report.reserved and report.completed:
        text.append(f"  the smallest capacity: {report.compared}")
    return "\n".join(["Not modelled", *text]) if text else ""


def _written(report: Report) -> str:
    return "\n".join(report.written)
