"""The page that a run ends with: does it fit, where the peak is, what it is made of, and what is not known."""

from simgpu.report import advice, processes
from simgpu.report.report import Line, Report
from simgpu.report.sizes import mib, share, size
from simgpu.report.verdict import DOES_NOT_FIT, FAILED, FITS, OUT_OF_MEMORY

LINES = 8  # the largest ones that are shown
STAND_INS = 6
STACK = 6


def page(report: Report) -> str:
    """The page, as text."""
    if report.processes:
        sections = [report.engine, processes.headline(report), *processes.sections(report)]
        sections += body(report) if report.nvidia_smi else []
    else:
        sections = [report.engine, _headline(report), *body(report)]
    sections += [processes.started(report), _written(report)]
    return "\n\n".join(section for section in sections if section) + "\n"


def body(report: Report) -> list[str]:
    """What follows the answer, about one process; sections may be empty."""
    sections = [_numbers(report), where(report), parts(report), lines(report)]
    return [*sections, _traffic(report), _advice(report), left_out(report), _stand_ins(report)]


def _headline(report: Report) -> str:
    """The answer, in a sentence, and how the program ended."""
    gpu, what = f"a simulated {report.gpu}", report.what
    if report.rank is not None:
        what = f"{what}, as rank {report.rank[0]} of {report.rank[1]},"
    verdict = report.verdict
    if verdict.outcome == FAILED:
        lines = [
            f"{what} failed on {gpu}, and not because of memory: {report.ended}",
            _use(report, "Until then it used"),
        ]
        return "\n".join(lines)
    if verdict.outcome == DOES_NOT_FIT:
        assert report.failure is not None
        asked, free, _ = report.failure
        at = f" at {report.at.place}" if report.at and report.at.place else ""
        operator = report.at.operator if report.at else "an allocation"
        lines = [
            f"{what} does not fit on {gpu}: {operator}{at} asks for {size(asked)}, and {mib(free)} of "
            f"{size(report.total_memory)} are free."
        ]
    elif verdict.outcome == FITS:
        lines = [f"{what} fits on {gpu}, with {size(verdict.spare or 0)} to spare.", _use(report, "It would use up to")]
    else:
        lines = [f"{what} on {gpu}: undecided, {verdict.reason}."]
        if report.reserved:
            at_least = "at least" if report.left_out or report.bounds else "up to"
            lines.append(_use(report, f"It would use {at_least}"))
    if report.ended:
        lines.append(report.ended)
    if report.caught:
        lines.append(f"{report.caught} allocation(s) failed, and the program caught the error and continued.")
    return "\n".join(lines)


def _use(report: Report, it_used: str) -> str:
    """The memory that nvidia-smi would show, and the smallest capacity that was found to fit."""
    text = f"{it_used} {mib(report.nvidia_smi)} of {size(report.total_memory)}, as nvidia-smi shows it."
    if report.smallest:
        text += f" The smallest capacity found to fit is {size(report.smallest)}."
    return text


def _numbers(report: Report) -> str:
    """The counters."""
    rows = [
        ("allocated, at the peak", report.peak, f"{report.peak:,} B"),
        ("reserved, at most", report.reserved, f"{report.reserved:,} B"),
    ]
    if report.nvidia_smi:
        context = f"with a CUDA context of {size(report.context)} (published, ±100)"
        rows.append(("nvidia-smi, at most", report.nvidia_smi, context))
    text = [f"  {name:<24}{mib(nbytes):>12} MiB   {more}" for name, nbytes, more in rows]
    clock = f" {report.seconds:.3g} s on the simulated clock (an estimate);" if report.seconds else ""
    text.append(f"  {_steps(report.steps)};{clock} torch {report.torch}")
    return "\n".join(text)


def _steps(count: int) -> str:
    return f"{count or 'no'} optimizer step{'s' if count != 1 else ''}"


def where(report: Report) -> str:
    """The moment of the peak, or of the error."""
    at = report.at
    if at is None:
        return "It took no memory of the GPU."
    title = "Where it ran out" if report.ending == OUT_OF_MEMORY else "Where the peak is"
    during = f"after {_steps(at.steps)}"
    text = [title, f"  {at.operator}, {at.stage}, {during}; it asks for {size(at.asked)}"]
    text += [f"    {place}" for place in at.stack[:STACK]]
    if len(at.stack) > STACK:
        text.append(f"    … {len(at.stack) - STACK} more")
        if at.place and at.place not in at.stack[:STACK]:
            text.append(f"    {at.place}   ← the innermost line of your own")
    return "\n".join(text)


def parts(report: Report) -> str:
    """What the peak is made of."""
    if not report.parts:
        return ""
    whole = sum(report.parts.values())
    rows = [f"  {name:<34}{mib(nbytes):>12} MiB{share(nbytes, whole):>8}" for name, nbytes in report.parts.items()]
    rows.append(f"  {'reserved then':<34}{mib(whole):>12} MiB")
    return "\n".join(["What it is made of there", *rows])


def lines(report: Report) -> str:
    """Who asked for it."""
    if not report.lines:
        return ""
    rows = [_line(one) for one in report.lines[:LINES]]
    rest = report.lines[LINES:]
    if rest:
        rows.append(f"  {mib(sum(one.nbytes for one in rest)):>12} MiB  of {len(rest)} other lines and operators")
    return "\n".join(["Who asked for it", *rows])


def _line(line: Line) -> str:
    many = f" in {line.blocks} blocks" if line.blocks > 1 else ""
    where = line.library or line.place
    through = f", from {line.place}" if line.library and line.place else ""
    asked = f"\n{'':>20}{where}{through}" if where else ""
    return f"  {mib(line.nbytes):>12} MiB  {line.part}: {line.operator}{many}{asked}"


OTHERS = (
    "No tensor's values come from another rank. Where the program reads values, collectives gave it what they would if",
    "every rank had this one's: no loss or sum over ranks is that of a real run.",
)


def _traffic(report: Report) -> str:
    """What a rank's collectives move."""
    if not report.traffic:
        return ""
    text = ["What this rank sends, by the ring's formulas (collectives, bytes of their messages, bytes sent)"]
    for kind, count, nbytes, sent in report.traffic:
        text.append(f"  {kind:<20}{count:>8,}{mib(nbytes):>16} MiB{mib(sent):>16} MiB")
    if any(sent for *_, sent in report.traffic) or any(kind == "recv" for kind, *_ in report.traffic):
        text += [f"  {line}" for line in OTHERS]
    return "\n".join(text)


def _advice(report: Report) -> str:
    """What would help, where memory ran out."""
    helps = advice.helps(report)
    return "\n".join(["What would help", *(f"  - {one}" for one in helps)]) if helps else ""


def left_out(report: Report) -> str:
    """What the figures do not hold."""
    text = ["What is left out"]
    own = report.engine.startswith("Engine stub")
    nothing = "nothing of PyTorch's own code" if own else "nothing: every operator that ran was compared"
    text += [f"  {report.left_out or nothing}"]
    text += [f"  {note}" for note in report.notes]
    text += [f"  of nvidia-smi's figure: {report.not_in_nvidia_smi}"] if report.not_in_nvidia_smi else []
    return "\n".join(text)


def _stand_ins(report: Report) -> str:
    """Values that were made up, and files that were not written."""
    if report.values or not (report.stand_ins or report.files):
        return ""
    text = []
    if report.stand_ins:
        total = sum(count for _, _, count in report.stand_ins)
        text.append(f"Values that do not exist here, and were answered as 0 ({total} times; --values computes them)")
        text += [f"  {count:>6} × {what:<16} {where}" for what, where, count in report.stand_ins[:STAND_INS]]
        if len(report.stand_ins) > STAND_INS:
            text.append(f"  … from {len(report.stand_ins) - STAND_INS} more lines")
    if report.files:
        text.append("Files that were counted, and not written in full")
        for path, times, nbytes in report.files:
            many = f", {'written' if path else 'in'} {times} {'times' if path else 'pieces'}" if times > 1 else ""
            text.append(f"  {path or 'buffers'}: {size(nbytes)} of tensors{many}")
    return "\n".join(text)


def _written(report: Report) -> str:
    return "\n".join(report.written)
