"""The report as one HTML file that needs no network: a timeline to zoom, tables to sort, and the page's own sentences.

Each figure is of the same Report as report.json and page.txt, and is written with the same functions. A figure in bytes
is an element <data> whose value is the number of bytes. Everything that comes from a program is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.report import files, module_table, page, placeholder_values, processes
from simgpu.report.cells import figure_of, number
from simgpu.report.picture import COLOURS
from simgpu.report.sizes import MIB, share, size
from simgpu.report.track import Track
from simgpu.report.verdict import FITS, OUT_OF_MEMORY

if TYPE_CHECKING:
    from simgpu.report.report import Line, Report


ASSETS = Path(__file__).parent / "assets"
MARK = '<meta name="generator" content="simgpu">'
"""What every such file has in its head."""
OTHER = "#BBBBBB"
"""The colour of a part that has none of its own."""
LINES = 12
"""Lines and operators that are shown at once; the others open with a click."""
EVENTS = 200_000
"""Events of all timelines of a file. Processes beyond that are drawn by their highest points."""
NO_MODULES = {
    "stub": "The stub engine reads PyTorch's own memory history, which does not say which module ran. "
    "With --engine meta this table is filled.",
    "formula": "The weights are calculated by a formula, which does not say which module holds them.",
    "none": "No block at this moment belongs to a module of the program.",
}
HINT = "Point at the figure to see a block. Drag or use the wheel to zoom, and double-click to see all of it."


@dataclass
class Charts:
    """The timelines of a file: the data of each, and how many events they may still have."""

    data: list[str] = field(default_factory=list)
    events: int = EVENTS

    def add(self, report: Report, track: Track) -> str:
        """Adds a timeline and returns the name of its element."""
        track = track if track.events <= self.events else track.thinned()
        self.events -= len(track.order)
        about = {
            "track": {"kinds": track.kinds, "names": track.names, "blocks": track.blocks, "order": track.order}
            | {"reserved": track.reserved, "points": track.points, "stride": track.stride}
            | {"events": track.events, "at": track.at},
            "parts": [{"name": name, "colour": colour} for name, colour in _colours(track).items()],
            "limit": report.total_memory - report.context,
            "top": max(report.reserved, report.peak, 1),
            "failed": report.ending == OUT_OF_MEMORY,
        }
        name = f"track-{len(self.data)}"
        text = json.dumps(about, separators=(",", ":")).replace("<", "\\u003c")
        self.data.append(f'<script type="application/json" id="{name}">{text}</script>')
        return name


def document(report: Report) -> str:
    """Returns the whole file."""
    charts = Charts()
    return framed(f"{report.what}: {report.outcome}", _report(report, charts), charts, "report")


def figure(report: Report) -> str:
    """Returns a file with the timeline alone."""
    charts = Charts()
    return framed(report.what, timeline(report, charts), charts, "figure")


def framed(title: str, body: str, charts: Charts, kind: str) -> str:
    """Puts a body into the frame of every such file."""
    parts = {
        "title": escape(title),
        "kind": kind,
        "uplot_css": _asset("uPlot.min.css"),
        "css": _asset("report.css"),
        "body": body,
        "data": "\n".join(charts.data),
        "licence": _asset("uPlot.LICENSE.txt") if charts.data else "",
        "uplot_js": _asset("uPlot.iife.min.js") if charts.data else "",
        "js": _asset("report.js"),
    }
    pieces = _asset("report.html").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (one.partition("}}") for one in pieces[1:]))


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _colours(track: Track) -> dict[str, str]:
    """The parts that the timeline has, from the bottom up."""
    drawn = {track.names[kind[1]] for kind in track.kinds}
    known = {name: colour for name, colour in COLOURS.items() if name in drawn}
    return known | dict.fromkeys(sorted(drawn - known.keys()), OTHER)


# --- the page ------------------------------------------------------------------------------------------------


def _report(report: Report, charts: Charts) -> str:
    """The body: the answer, a section for each process, and what concerns all of them."""
    parts = [_answer(report), headline(report)]
    if report.processes:
        parts += _processes(report, charts)
    if not report.processes or report.nvidia_smi:
        parts += body(report, charts)
    parts += [_as_text(processes.started(report)), _as_text(files.section(report.files)), _provenance(report)]
    return "\n".join(filter(None, parts))


def body(report: Report, charts: Charts) -> list[str]:
    """Returns the sections about one process. Sections may be empty."""
    return [
        _capacity(report),
        timeline(report, charts),
        _as_text(page.where(report)),
        parts_table(report),
        _lines(report),
        _modules(report),
        _findings(report),
        _as_text(page.traffic(report)),
        _as_text(page.not_modelled(report)),
        _as_text(placeholder_values.section(report)),
    ]


def headline(report: Report) -> str:
    """Returns the verdict with its margin, and the sentences of the page."""
    text = processes.headline(report) if report.processes else page.headline(report)
    first, *more = text.split("\n")
    verdict = report.verdict
    plus_minus = f"±{verdict.uncertainty // MIB}"
    margin = (
        f"{figure_of(verdict.spare, size)} ({plus_minus}) to spare" if verdict.outcome == FITS and verdict.spare else ""
    )
    missing = _missing(report)
    margin = f'<span class="margin"> · {margin or missing}</span>' if margin or missing else ""
    outcome = f'<div class="verdict {verdict.outcome.replace(" ", "-")}">{verdict.outcome}{margin}</div>'
    return f"{outcome}<h1>{escape(first)}</h1>" + "".join(f"<p>{escape(one)}</p>" for one in more)


def _missing(report: Report) -> str:
    """What the request that failed lacked."""
    if report.failure is None or report.failure[0] <= report.failure[1]:
        return ""
    return f"{figure_of(report.failure[0] - report.failure[1], size)} missing for the request that failed"


def _answer(report: Report) -> str:
    text = "\n".join(report.answer).strip()
    return f"<pre>{escape(text)}</pre>" if text else ""


def _processes(report: Report, charts: Charts) -> list[str]:
    found = []
    for at, (one, alike) in enumerate(processes.different(report)):
        title = f"Process: {escape(processes.title(one))}"
        if alike is not None:
            found.append(f"<p><b>{title}</b>: its memory is that of {escape(processes.title(alike))}.</p>")
            continue
        inside = "\n".join(filter(None, [f"<p>{escape(processes.end(one))}</p>", *body(one, charts)]))
        found.append(f'<details class="process"{"" if at else " open"}><summary>{title}</summary>{inside}</details>')
    rest = len(report.processes) - processes.SHOWN
    if rest > 0:
        found.append(f"<p>{rest} more processes used the GPU; report.json has all of them.</p>")
    return found


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>" if inside else ""


def _as_text(section: str) -> str:
    """A section of the text page, whose first line is its title."""
    title, _, rest = section.partition("\n")
    return _section(title, f"<pre>{escape(rest)}</pre>" if rest else "") if section else ""


def _key(part: str) -> str:
    return f'<span class="key" style="background:{COLOURS.get(part, OTHER)}"></span>'


def _capacity(report: Report) -> str:
    """The GPU as a bar, and the counters."""
    if not report.reserved:
        return ""
    cache_size = report.reserved - report.peak
    widths = [
        ("context", report.nvidia_smi - report.reserved),
        ("allocated", report.peak),
        ("cache", cache_size),
    ]
    spans = "".join(
        f'<span class="{name}" style="width:{100 * nbytes / report.total_memory:.3f}%"></span>'
        for name, nbytes in widths
        if nbytes > 0
    )
    keys = (("CUDA context", "context"), ("allocated", "allocated"), ("reserved, but not allocated", "cache"))
    cells = "".join(f'<span><span class="key {name}"></span>{text}</span>' for text, name in keys)
    return (
        f'<div class="capacity">{spans}</div><div class="keys">{cells}</div>'
        f'{_margin(report)}<p class="quiet">{escape(page.made(report))}</p>'
    )


def _margin(report: Report) -> str:
    """The counters as a table; of a run that completed, as what the bytes to spare are made of."""
    counters = [("", *row) for row in page.counters(report)]
    rows = page.margin_rows(report)
    rows = [*rows, counters[0]] if rows else counters
    body = "".join(
        f'<tr class="{"sum" if sign == "=" else ""}"><td>{sign}</td><th>{name}</th>{number(nbytes)}'
        f'<td class="quiet">{escape(more)}</td></tr>'
        for sign, name, nbytes, more in rows
    )
    return f'<div class="scroll"><table class="counters"><tbody>{body}</tbody></table></div>'


def timeline(report: Report, charts: Charts) -> str:
    """Returns the section with the figure, "" where no memory was used."""
    track = report.timeline
    if track is None:
        return ""
    name = charts.add(report, track)
    keys = "".join(f"<span>{_key(part)}{escape(part)}</span>" for part in _colours(track))
    if track.points:
        keys = '<span><span class="key" style="background:#56B4E9"></span>allocated</span>'  # as in report.js
    reserved = '<span><span class="key" style="background:var(--reserved)"></span>reserved</span>'
    limit = report.total_memory - report.context
    note = f"{track.events:,} allocations and frees."
    if limit > 1.15 * max(report.reserved, report.peak):
        note += f" The GPU's limit without its context, {figure_of(limit)} MiB, is above the figure."
    if track.points:
        note += f" Each point is the highest of {track.stride:,} of them, because the run is long."
    zoom = {"in": "+", "out": "−", "left": "◀", "right": "▶", "reset": "all"}
    words = {"in": "zoom in", "out": "zoom out", "left": "earlier", "right": "later", "reset": "the whole run"}
    tools = "".join(
        f'<button type="button" data-zoom="{name}" aria-label="{words[name]}">{zoom[name]}</button>' for name in zoom
    )
    inside = (
        f'<div class="keys">{keys}{reserved}</div>'
        f'<div class="chart" data-track="{name}" tabindex="0" role="img" aria-label="MiB allocated over the run"></div>'
        f'<div class="tools">{tools}<span class="quiet">MiB by allocations and frees</span></div>'
        f'<div class="readout">{HINT}</div><p class="quiet">{note}</p>'
        "<noscript><p>The figure needs JavaScript.</p></noscript>"
    )
    return _section("Memory over the run", inside)


def parts_table(report: Report) -> str:
    """Returns the section about what memory is made of at the peak, or where it ran out."""
    if not report.parts:
        return ""
    whole = sum(report.parts.values())
    most = max(*report.parts.values(), 1)
    rows = []
    for name, nbytes in report.parts.items():
        bar = f'<span style="width:{100 * max(nbytes, 0) / most:.2f}%;background:{COLOURS.get(name, OTHER)}"></span>'
        cells = [number(nbytes), f'<td class="number">{share(nbytes, whole)}</td>', f'<td class="bar">{bar}</td>']
        rows.append(f"<tr><th>{_key(name)}{escape(name)}</th>{''.join(cells)}</tr>")
    rows.append(f"<tr><th>reserved at that moment</th>{number(whole)}<td></td><td></td></tr>")
    head = '<thead><tr><th>part</th><th class="number">MiB</th><th class="number">share</th><th></th></tr></thead>'
    table = f'<div class="scroll"><table class="wide">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    title = "Memory by kind, where it ran out" if report.ending == OUT_OF_MEMORY else "Memory by kind, at the peak"
    return _section(title, table)


def _lines(report: Report) -> str:
    """The lines that allocated it, each with the stack of its first block."""
    shown, rest = report.lines[:LINES], report.lines[LINES:]
    text = _line_table(shown) if shown else ""
    if rest:
        title = f"{figure_of(sum(one.nbytes for one in rest))} MiB of {len(rest)} other lines and operators"
        text += f"<details><summary>{title}</summary>{_line_table(rest)}</details>"
    return _section("Allocated by", text)


def _line_table(lines: Sequence[Line]) -> str:
    head = (
        '<thead><tr><th class="number">MiB</th><th class="number">blocks</th><th>what</th><th>where</th></tr></thead>'
    )
    rows = "".join(
        f'<tr>{number(one.nbytes)}<td class="number">{one.blocks:,}</td>'
        f'<td>{_key(one.part)}{escape(one.part)}: {escape(one.operator)} <span class="quiet">({escape(one.stage)})'
        f"</span></td><td>{_stack(one)}</td></tr>"
        for one in lines
    )
    return f'<div class="scroll"><table class="wide lines">{head}<tbody>{rows}</tbody></table></div>'


def _stack(line: Line) -> str:
    where = line.library or line.place
    through = f", from {line.place}" if line.library and line.place else ""
    if not where and not line.stack:
        return ""
    text = f'<span class="place">{escape(where or line.stack[0])}{escape(through)}</span>'
    if len(line.stack) < 2:
        return text
    return f"<details><summary>{text}</summary><pre>{escape(chr(10).join(line.stack))}</pre></details>"


def _modules(report: Report) -> str:
    """The table per module."""
    if not report.parts:
        return ""
    if not report.modules:
        stub = report.engine.startswith("Engine stub") or report.plan.get("engine") == "stub"
        why = "formula" if report.plan.get("four_bit") else "stub" if stub else "none"
        return _section("By module", f'<p class="quiet">{NO_MODULES[why]}</p>')
    return _section("By module", module_table.table(report))


def _findings(report: Report) -> str:
    items = "".join(f"<li>{escape(page.sentence(str(one)))}</li>" for one in report.findings)
    return _section("Findings", f"<ul>{items}</ul>" if items else "")


def _provenance(report: Report) -> str:
    rows = [
        ("command", report.command),
        ("GPU", f"a simulated {report.gpu}, {size(report.total_memory)}"),
        ("engine", report.engine or "meta: PyTorch's meta tensors and a model of the caching allocator"),
        ("torch", report.torch),
        ("simgpu", report.version),
    ]
    return _section("How it was made", described(rows))


def described(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a list of names and texts, without those that are empty."""
    return f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(text)}</dd>' for name, text in rows if text)}</dl>"


def save(text: str, path: Path) -> None:
    """Writes a file of this module. Raises ValueError if one of that name exists and is not of this module, and OSError
    if it cannot be written."""
    if path.exists():
        begins = path.read_bytes()[:1000] if path.is_file() else b""
        if MARK.encode() not in begins:
            raise ValueError(f"{str(path)!r} exists, and simgpu did not write it: wanted another name")
    path.write_text(text, encoding="utf-8")
