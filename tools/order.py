"""Holds the order of the chapters (core path, deep dives, case studies), and writes the links between them.

    python -m tools.order --write       write titles' labels, contents and links into every notebook
    python -m tools.order               print the core path with its minutes

A chapter of the core path needs only the core chapters before it. Deep dives and case studies can be skipped.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import quote

import nbformat

from tools import minutes

CORE = ("00", "01", "02", "03", "05", "07", "08", "09", "10", "11", "12", "13", "23")
CASE_STUDIES = ("17", "24", "25")
LONGEST_CORE = 360  # minutes of the core path
LONGEST_CORE_CHAPTER = 25  # minutes

TITLE = re.compile(r"# (?P<key>\d\d[a-z]?) · (?:(?:Deep dive|Case study) · )?(?P<question>.+)")
CLAIM = re.compile(r"(?:(?:Core|Deep dive|Case study) · )?(?=\*\*\d+ minutes\*\*)")
HEADING = re.compile(r"^## (.+)$", re.M)
AT_THE_END = {"Exercises", "Published figures", "Three takeaways", "Further reading"}
"""Sections that every chapter ends with, which its contents do not list."""
WRITTEN_BY_HAND = re.compile(r"\n+\*\*(?:Previous|Next):\*\* .*\Z")
CONTENTS, LINKS = "contents", "navigation"
"""Tags of the two cells that this module writes."""


def label(key: str) -> str:
    """Returns the label of a chapter by its number: Core, Deep dive or Case study."""
    return "Core" if key in CORE else "Case study" if key in CASE_STUDIES else "Deep dive"


def write(notebooks: dict[Path, nbformat.NotebookNode]) -> None:
    """Puts labels, contents and links into the notebooks, which are changed in place."""
    for path, notebook in notebooks.items():
        notebook.cells = [cell for cell in notebook.cells if not {CONTENTS, LINKS} & set(cell.metadata.get("tags", ()))]
        notebook.cells[-1].source = WRITTEN_BY_HAND.sub("", notebook.cells[-1].source)
        notebook.cells[0].source = labelled(minutes.key(path), notebook.cells[0].source)
    titles = {minutes.key(path): TITLE.match(notebook.cells[0].source) for path, notebook in notebooks.items()}
    files = {minutes.key(path): path.name for path in notebooks}
    for path, notebook in notebooks.items():
        key = minutes.key(path)
        links = {other: (files[other], titles[other]["question"]) for other in files}
        notebook.cells.insert(1, _cell(contents(notebook), CONTENTS, f"contents-{key}"))
        notebook.cells.append(_cell(following(key, links), LINKS, f"navigation-{key}"))


def labelled(key: str, first: str) -> str:
    """A chapter's first cell with its label in the title, unless it is of the core path, and before its minutes."""
    kind = label(key)
    title = TITLE.match(first)
    if title is None:
        raise ValueError(f"chapter {key} begins with {first.splitlines()[0]!r}: wanted '# {key} · a question?'")
    shown = "" if kind == "Core" else f"{kind} · "
    return f"# {key} · {shown}{title['question']}" + CLAIM.sub(f"{kind} · ", first[title.end() :], count=1)


def contents(notebook) -> str:
    """The chapter's sections as links that Jupyter and GitHub follow."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    found = [hit.replace("`", "") for text in texts for hit in HEADING.findall(text) if hit not in AT_THE_END]
    return "**In this chapter:** " + ", ".join(f"[{one}](#{quote(one.replace(' ', '-'))})" for one in found)


def following(key: str, links: dict[str, tuple[str, str]]) -> str:
    """One line: the next core chapter, what can be read on the way to it, the chapter before, and all chapters.

    `links`: the file and the question of each chapter by its number, in order.
    """
    keys = list(links)
    at = keys.index(key)
    later = [other for other in keys[at + 1 :] if other in CORE]
    on_the_way = keys[at + 1 : keys.index(later[0]) if later else len(keys)]
    parts = [f"**Next:** [{later[0]} · {links[later[0]][1]}]({links[later[0]][0]})"] if later else []
    if on_the_way:
        parts.append("**Optional:** " + ", ".join(f"[{other}]({links[other][0]})" for other in on_the_way))
    if at:
        parts.append(f"**Previous:** [{keys[at - 1]}]({links[keys[at - 1]][0]})")
    return " · ".join([*parts, "[All chapters](../README.md#chapters)"])


def _cell(source: str, tag: str, name: str):
    made = nbformat.v4.new_markdown_cell(source, metadata={"tags": [tag], "slideshow": {"slide_type": "skip"}})
    made.id = name
    return made


def main(arguments: list[str]) -> int:
    """Writes or prints; returns the exit status."""
    found = minutes.load()
    if arguments == ["--write"]:
        write(found)
        for path, notebook in found.items():
            nbformat.write(notebook, path)
        return 0
    taken = {minutes.key(path): minutes.computed(notebook) for path, notebook in found.items()}
    for key in CORE:
        print(f"{key}  {taken[key]:5.1f} minutes")
    print(
        f"core path: {sum(taken[key] for key in CORE):.0f} minutes; all chapters: {sum(taken.values()) / 60:.1f} hours"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
