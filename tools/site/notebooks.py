"""A notebook as a page: solutions collapsed, without what only nbval, a lecturer or a running kernel can use."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tools import order

DROPPED = ("application/vnd.jupyter.widget-view+json", "application/vnd.labkit")  # beginnings of MIME types
SOLUTION = {"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def page(notebook: dict, text: Callable[[str], str], say: Callable[[str], str] = str) -> dict:
    """The notebook as the site shows it; `text` changes the Markdown of a cell, and `say` the site's own words.

    The one given stays as it is.
    """
    made = copy.deepcopy(notebook)
    made["cells"] = [new for cell in made["cells"] for new in _cells(cell, text, say)]
    made["metadata"].pop("widgets", None)
    made["nbformat"], made["nbformat_minor"] = 4, 4  # in which a cell has no id: some are new
    return made


def markdown(source: str) -> dict:
    """A new cell of Markdown."""
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def _cells(cell: dict, text: Callable[[str], str], say: Callable[[str], str]) -> list[dict]:
    """What becomes of a cell: nothing, itself, or one cell for each of its figures."""
    metadata, source = cell["metadata"], "".join(cell["source"])
    if metadata.get("slideshow", {}).get("slide_type") == "notes":
        return []  # what a lecturer says; it is in the slides
    if {order.CONTENTS, order.LINKS} & set(metadata.get("tags", ())):
        return []  # the site has its own contents and links
    cell.pop("id", None)
    if cell["cell_type"] != "code":
        cell["source"] = text(source)
        return [cell]
    cell["source"] = source
    cell["outputs"] = [output for output in map(_shown, cell["outputs"]) if output is not None]
    tags = metadata.get("tags", [])
    cell["metadata"] = {"tags": [*tags, *(["hide-cell"] if "solution" in tags else [])]}
    if "solution" in tags:
        cell["metadata"]["mystnb"] = {name: say(words) for name, words in SOLUTION.items()}
    return list(_one_figure_each(cell)) if cell["source"].strip() or cell["outputs"] else []


def _shown(output: dict) -> dict | None:
    """An output with what a page can show of it; None if that is nothing."""
    if "data" not in output:
        return output
    if any(mime.startswith(DROPPED[0]) for mime in output["data"]):
        return None  # a progress bar
    output["data"] = {mime: data for mime, data in output["data"].items() if not mime.startswith(DROPPED)}
    return output if output["data"] else None


def _one_figure_each(cell: dict):
    """The cell, its outputs cut after each figure, so that each figure has its own alternative text."""
    groups: list[list[dict]] = [[]]
    for output in cell["outputs"]:
        groups[-1].append(output)
        if "image/png" in output.get("data", {}):
            groups.append([])
    groups = [group for group in groups if group] or [[]]
    for number, group in enumerate(groups):
        part = cell if number == 0 else {**copy.deepcopy(cell), "source": ""}
        part["outputs"] = group
        if number:
            part["metadata"]["tags"].append("remove-input")
        about = group[-1].get("metadata", {}).get("image/png", {}) if group else {}
        if about.get("alt"):
            part["metadata"].setdefault("mystnb", {})["image"] = {"alt": about["alt"]}
        yield part
