"""The table of modules in an HTML report: a tree whose rows contain the modules inside them, and can be opened."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from simgpu.report.cells import number
from simgpu.report.modules import SIZES, Module, totals

if TYPE_CHECKING:
    from simgpu.report.report import Report

FIELDS = {
    "parameters": "parameters",
    "gathered": "gathered parameters",
    "saved": "saved for backward",
    "temporaries": "temporaries",
    "gradients": "gradients",
    "states": "optimizer states",
    "other": "other",
    "total": "all",
}
"""Columns of the table."""
ROWS = 10
"""The table opens at the first depth at which it shows as many modules, because a model's repeated blocks are there."""
NOTE = (
    "MiB at that moment. A parameter, its gradient and its optimizer states belong to the module that holds it. "
    "Other memory belongs to the module that ran when it was allocated, or whose backward ran. A row contains the "
    "modules inside its own, and “itself” is what it has in addition to them. A click on ▸ opens a row, and a click "
    "on a title sorts."
)
ALONE = "each module alone"


class Row(NamedTuple):
    """A row: its module's bytes, how deep it is, the path before its name, the name, and what it is.

    `role`: "parent" for a row that contains others, "own" for a parent's own bytes, "leaf" for all others.
    """

    module: Module
    depth: int
    path: str
    name: str
    role: str


def tree(report: Report) -> list[Row]:
    """Returns the rows in the order of the names, each before those inside it."""
    found = report.module_totals or totals(report.modules, {})
    several = len({one.model for one in found}) > 1
    parents = {(one.model, one.name.rpartition(".")[0]) for one in found if one.name}
    own: dict[tuple[str, str], Counter] = {}
    for one in report.modules:
        own.setdefault((one.model, one.name), Counter()).update({column: getattr(one, column) for column in SIZES})
    rows: list[Row] = []
    for one in found:
        key = one.model, one.name
        rows.append(_row(one, several, "parent" if key in parents else "leaf"))
        if key in parents and any(own.get(key, {}).values()):
            itself = _row(Module(*key, one.kind, **own[key]), several, "own")
            rows.append(itself._replace(depth=itself.depth + 1, path=itself.path + itself.name, name=" itself"))
    return rows + [Row(one, 0, "", "outside all modules", "leaf") for one in report.modules if not one.model]


def _row(one: Module, several: bool, role: str) -> Row:
    if not one.name:
        return Row(one, 0, "", one.model, role)
    path, _, name = one.name.rpartition(".")
    before = f"{one.model}: " if several else ""
    return Row(one, one.name.count(".") + 1, before + (f"{path}." if path else ""), name, role)


def opened(rows: list[Row]) -> int:
    """Returns the depth at which the table is shown first."""
    depths = [row.depth for row in rows if row.role != "own"]
    return next((depth for depth in range(max(depths)) if sum(one <= depth for one in depths) >= ROWS), max(depths))


def table(report: Report) -> str:
    """Returns the table with its note and its choice of depth."""
    rows = tree(report)
    used = [name for name in FIELDS if any(getattr(row.module, name) for row in rows)]
    used = ["total", *(name for name in used if name != "total")]  # first, because it sorts the rows
    heads = "".join(f'<th class="number">{FIELDS[name]}</th>' for name in used)
    first = opened(rows)
    body = "".join(
        f'<tr data-depth="{row.depth}" class="{row.role}" style="--depth:{row.depth}"><th>'
        f'<span class="quiet">{escape(row.path)}</span>{escape(row.name)}</th>'
        f"{''.join(number(getattr(row.module, name)) for name in used)}<td>{escape(row.module.kind)}</td></tr>"
        for row in rows
    )
    deepest = max(row.depth for row in rows)
    options = "".join(
        f'<option value="{depth}"{" selected" * (depth == first)}>to depth {depth}</option>'
        for depth in range(deepest + 1)
    )
    choice = f'<label>Rows <select class="depth">{options}<option value="alone">{ALONE}</option></select></label>'
    head = f"<thead><tr><th>module</th>{heads}<th>class</th></tr></thead>"
    return (
        f'<p class="quiet">{NOTE}</p><div class="tools">{choice}</div>'
        f'<div class="tall"><table class="tree wide">{head}<tbody>{body}</tbody></table></div>'
    )
