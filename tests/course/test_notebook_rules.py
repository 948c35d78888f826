"""The notebooks keep the course's rules, and a notebook that breaks one is found out."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebook_rules import code_cells, problems

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_rules(path):
    assert problems(path) == []


def test_at_most_one_cell_in_ten_of_the_course_ignores_its_output():
    counts = [code_cells(path) for path in NOTEBOOKS]
    assert sum(ignored for _, ignored in counts) * 10 <= sum(cells for cells, _ in counts)


def good_notebook():
    """A notebook of ten code cells that keeps every rule."""
    code = [new_code_cell(f"{n} + {n}", execution_count=n) for n in range(1, 11)]
    code[-1].metadata.update(tags=["solution"], jupyter={"source_hidden": True})
    cells = [new_markdown_cell("# Title"), *code[:-1], new_markdown_cell("Task"), code[-1]]
    cells[-2].metadata["tags"] = ["exercise"]
    for cell in cells:
        cell.metadata["slideshow"] = {"slide_type": "skip"}
    cells[0].metadata["slideshow"] = {"slide_type": "slide"}
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def written(folder, notebook, name="01_topic.ipynb"):
    path = folder / name
    nbformat.write(notebook, path)
    return path


def test_a_good_notebook_has_no_problems(tmp_path):
    assert problems(written(tmp_path, good_notebook())) == []


def test_the_file_name(tmp_path):
    assert "wanted NN_topic.ipynb" in problems(written(tmp_path, good_notebook(), "Untitled.ipynb"))[0]


def break_(change):
    """A notebook that is good but for one change to it and its cells."""
    notebook = good_notebook()
    change(notebook, notebook.cells)
    return notebook


BROKEN = {
    "the kernel is 'my-env'": lambda n, c: n.metadata.kernelspec.update(name="my-env"),
    "a path of one machine": lambda n, c: c[0].update(source="see /home/somebody/x"),
    "execution counts": lambda n, c: c[3].update(execution_count=7),
    "is skipped by nbval": lambda n, c: c[1].metadata.update(tags=["nbval-skip"]),
    "has a comment for nbval": lambda n, c: c[1].update(source="# NBVAL_IGNORE_OUTPUT\n1"),
    "stores an error": lambda n, c: c[1].outputs.append(new_output("error", ename="E", evalue="e")),
    "stores an SVG": lambda n, c: c[1].outputs.append(new_output("display_data", {"image/svg+xml": "<svg/>"})),
    "2 of 10 code cells ignore their output": lambda n, c: [
        c[1].metadata.update(tags=["nbval-ignore-output"]),
        c[2].metadata.update(tags=["nbval-ignore-output"]),
    ],
    "code cell 4 is empty": lambda n, c: c[4].update(source=" "),
    "has 26 lines": lambda n, c: c[4].update(source="1\n" * 26),
    "do not pair": lambda n, c: c[-2].metadata.pop("tags"),
    "is not collapsed": lambda n, c: c[-1].metadata.pop("jupyter"),
    "cells [2] have no slideshow.slide_type": lambda n, c: c[1].metadata.pop("slideshow"),
    "no cell starts a slide": lambda n, c: c[0].metadata.slideshow.update(slide_type="skip"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_rule_is_named(tmp_path, message):
    found = problems(written(tmp_path, break_(BROKEN[message])))
    assert len(found) == 1 and message in found[0]


def test_an_error_may_be_stored_where_it_is_meant(tmp_path):
    def raises(notebook, cells):
        cells[1].outputs.append(new_output("error", ename="E", evalue="e"))
        cells[1].metadata["tags"] = ["raises-exception"]

    assert problems(written(tmp_path, break_(raises))) == []
