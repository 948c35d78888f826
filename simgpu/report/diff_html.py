"""The difference of two runs as one HTML file: what has grown, by line, and both timelines."""

from __future__ import annotations

from html import escape

from simgpu.report import html, page
from simgpu.report.compare import Difference, Side
from simgpu.report.sizes import mib

SEEN = 8
"""Rows that are seen of a table before it scrolls."""


def document(difference: Difference) -> str:
    """Returns the whole file."""
    charts = html.Charts()
    first, *rest = str(difference).splitlines()
    first = first.removesuffix(":")
    counts, notes = rest[:1], [line for line in rest[1:] if not line.startswith((" ", "+", "-")) and line]
    grown = difference.grown
    outcome = "equal" if not grown else "higher" if grown > 0 else "lower"
    kind = "does-not-fit" if grown > 0 else "fits"
    margin = f'<span class="margin"> · {_signed(grown)} MiB</span>' if grown else ""
    parts = [
        f'<div class="verdict {kind}">peak {outcome}{margin}</div><h1>{escape(first)}</h1>',
        *(f"<p>{escape(line)}</p>" for line in (*counts, *notes)),
        _table(difference),
        *(_side(side, charts) for side in (difference.before, difference.after)),
    ]
    return html.framed(first, "\n".join(filter(None, parts)), charts, "diff")


def _signed(nbytes: int) -> str:
    return f'<data value="{nbytes}">{"+" if nbytes > 0 else "-" if nbytes else ""}{mib(abs(nbytes))}</data>'


def _table(difference: Difference) -> str:
    if not difference.rows:
        return ""
    most = max(abs(more) for more, *_ in difference.rows)
    rows = []
    for more, had, has, where, operator, part in difference.rows:
        tone, colour = ("more", "var(--bad)") if more > 0 else ("less", "var(--good)")
        bar = f'<span style="width:{100 * abs(more) / most:.2f}%;background:{colour}"></span>'
        what = ": ".join(filter(None, (part, operator)))
        numbers = "".join(f'<td class="number">{html.figure_of(one)}</td>' for one in (had, has))
        rows.append(
            f'<tr><td class="number {tone}">{_signed(more)}</td><td class="bar">{bar}</td>{numbers}'
            f'<td><span class="place">{escape(where)}</span><div class="quiet">{escape(what)}</div></td></tr>'
        )
    heads = (
        '<th class="number">MiB more</th><th></th><th class="number">before</th><th class="number">after</th>'
        "<th>where and what</th>"
    )
    table = f'<table class="sortable wide lines"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    more = f'<p class="quiet">{len(rows)} lines; scroll inside the table to see all.</p>' if len(rows) > SEEN else ""
    return f'<section><h2>What has changed at the peak</h2><div class="tall">{table}</div>{more}</section>'


def _side(side: Side, charts: html.Charts) -> str:
    """The verdict on one run, its timeline, and how it was made."""
    report = side.report
    if report is None:
        return ""
    rows = [("command", report.command), ("torch", report.torch), ("simgpu", report.version)]
    verdict = page.headline(report).splitlines()[0]
    head = f"<h2>{escape(side.name)}: {escape(report.what)}</h2><p>{escape(verdict)}</p>"
    return f"{head}{html.timeline(report, charts)}{html.described(rows)}"
