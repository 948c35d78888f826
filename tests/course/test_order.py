"""The order of the chapters: labels, contents and links are in every notebook, and the core path is short enough."""

import copy

import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from tools import minutes, order


def test_every_notebook_has_its_label_its_contents_and_its_links():
    found = minutes.load()
    written = copy.deepcopy(found)
    order.write(written)
    wrong = [path.name for path in found if found[path] != written[path]]
    assert wrong == [], "run: python -m tools.order --write"


def test_the_core_path_takes_at_most_six_hours_and_a_chapter_of_it_25_minutes():
    taken = {minutes.key(path): minutes.computed(notebook) for path, notebook in minutes.load().items()}
    assert sum(taken[key] for key in order.CORE) <= order.LONGEST_CORE
    assert {key: taken[key] for key in order.CORE if taken[key] > order.LONGEST_CORE_CHAPTER} == {}


@pytest.mark.parametrize(
    ("key", "first", "wanted"),
    [
        ("03", "# 03 · Where?\n\n**24 minutes**, and", "# 03 · Where?\n\nCore · **24 minutes**, and"),
        ("03b", "# 03b · Which?\n\n**9 minutes**", "# 03b · Deep dive · Which?\n\nDeep dive · **9 minutes**"),
        (
            "17",
            "# 17 · Deep dive · How?\n\nCore · **9 minutes**",
            "# 17 · Case study · How?\n\nCase study · **9 minutes**",
        ),
    ],
)
def test_a_label(key, first, wanted):
    assert order.labelled(key, first) == wanted
    assert order.labelled(key, wanted) == wanted


def test_a_first_cell_without_a_heading_is_refused():
    with pytest.raises(ValueError, match=r"chapter 03 begins with 'Where\?': wanted '# 03 · a question\?'"):
        order.labelled("03", "Where?")


def test_links_lead_to_the_next_core_chapter():
    links = {key: (f"{key}.ipynb", f"Why {key}?") for key in ("00", "00b", "01", "03", "03b", "04", "23", "24")}
    every = "[All chapters](../README.md#chapters)"
    assert (
        order.following("00", links) == f"**Next:** [01 · Why 01?](01.ipynb) · **Optional:** [00b](00b.ipynb) · {every}"
    )
    assert order.following("03b", links) == (
        f"**Next:** [23 · Why 23?](23.ipynb) · **Optional:** [04](04.ipynb) · **Previous:** [03](03.ipynb) · {every}"
    )
    assert order.following("24", links) == f"**Previous:** [23](23.ipynb) · {every}"


def test_contents_are_the_sections_of_the_chapter():
    cells = [
        new_markdown_cell("# 03 · Where?\n"),
        new_markdown_cell("## A `step`, in full\n"),
        new_markdown_cell("## Exercises"),
    ]
    assert order.contents(new_notebook(cells=cells)) == "**In this chapter:** [A step, in full](#A-step%2C-in-full)"
