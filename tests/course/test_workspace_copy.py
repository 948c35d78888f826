"""The reader's copy of the notebooks: cleared, collapsed, and never written over what the reader has changed."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit import guesses
from tools import minutes
from tools.workspace_copy import ANSWER, COLLAPSED, NOTE, cleared, refresh


def chapter(text="1 + 1"):
    """A notebook that has been run, with a solution that stands open."""
    code = new_code_cell(text, execution_count=1, outputs=[new_output("execute_result", {"text/plain": "2"})])
    solution = new_code_cell("42", outputs=[new_output("stream", text="42")], metadata={"tags": ["solution"]})
    return new_notebook(cells=[new_markdown_cell("# 01"), code, solution])


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "notebooks"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "text.txt").write_text("some words")
    (folder / "helpers").mkdir()
    (folder / "helpers" / "models.py").write_text("")
    nbformat.write(chapter(), folder / "01_topic.ipynb")
    return folder


@pytest.fixture
def mine(tmp_path):
    return tmp_path / "mine"


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def edit(path, text="guess = 5"):
    """What a reader does: change a cell, run it, and save."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = text
    nbformat.write(notebook, path)


def test_the_copy_is_cleared_and_collapsed_and_has_the_data(course, mine):
    assert refresh(course, mine) == []
    cells = nbformat.read(mine / "01_topic.ipynb", as_version=4).cells
    assert [cell.get("outputs", []) for cell in cells] == [[], [], []]
    assert cells[1].execution_count is None
    assert cells[2].metadata.jupyter == COLLAPSED
    assert (mine / "data" / "text.txt").read_text() == "some words"
    assert not (mine / "helpers").exists()  # labkit finds the course's, which a pull brings up to date
    assert nbformat.read(course / "01_topic.ipynb", as_version=4).cells[1].outputs  # the course's is left alone


def collapsed(cells):
    return [cell.metadata.get("jupyter", {}) for cell in cleared(new_notebook(cells=cells)).cells]


def test_the_answer_to_a_guess_is_collapsed_and_its_output_is_not():
    cells = [
        new_code_cell("x = 1"),
        new_code_cell("guess_x = ...  # bytes"),
        new_markdown_cell("guess=guess_x is not code here"),
        new_code_cell("estimate = 4"),
        new_code_cell("guess_y = ...  # bytes"),
        new_code_cell("compare('x', guess=guess_x, measured=4)"),
        new_code_cell("compare('y', guess=guess_y2, measured=4); compare('y', guess=guess_y, measured=4)"),
        new_code_cell("after = 5"),
    ]
    assert collapsed(cells) == [{}, {}, {}, ANSWER, {}, ANSWER, ANSWER, {}]


def test_a_guess_that_is_not_compared_and_a_guess_compared_in_its_own_cell_collapse_nothing():
    assert collapsed([new_code_cell("guess_x = ..."), new_code_cell("x = 1")]) == [{}, {}]
    assert collapsed([new_code_cell("guess_x = ...\ncompare('x', guess=guess_x)"), new_code_cell("x")]) == [{}, {}]


def test_each_guess_of_the_course_has_a_collapsed_comparison():
    for path, notebook in minutes.load().items():
        cells = cleared(notebook).cells
        open_code = [c.source for c in cells if c.cell_type == "code" and not c.metadata.get("jupyter")]
        asked = sum(text.count("guess_") and text.startswith("guess_") for text in open_code)
        assert asked, path.name
        assert not [text for text in open_code if "guess=guess_" in text], path.name


def test_an_unchanged_copy_follows_the_course(course, mine):
    refresh(course, mine)
    nbformat.write(chapter("2 + 2"), course / "01_topic.ipynb")
    nbformat.write(chapter(), course / "02_topic.ipynb")
    assert refresh(course, mine) == []
    assert sources(mine / "01_topic.ipynb")[1] == "2 + 2"
    assert sources(mine / "02_topic.ipynb")[1] == "1 + 1"


def test_an_editor_that_saves_without_a_change_changes_nothing(course, mine):
    refresh(course, mine)
    notebook = json.loads((mine / "01_topic.ipynb").read_text())
    notebook["metadata"]["language_info"] = {"name": "python"}
    (mine / "01_topic.ipynb").write_text(json.dumps(notebook))
    nbformat.write(chapter("2 + 2"), course / "01_topic.ipynb")
    assert refresh(course, mine) == []
    assert sources(mine / "01_topic.ipynb")[1] == "2 + 2"


def test_what_the_reader_changed_stays_and_a_new_version_goes_beside_it(course, mine):
    refresh(course, mine)
    edit(mine / "01_topic.ipynb")
    assert refresh(course, mine) == []  # the course has nothing new
    nbformat.write(chapter("2 + 2"), course / "01_topic.ipynb")
    (said,) = refresh(course, mine)
    assert said == "01_topic.ipynb has your changes and stays as it is; the course's new version is 01_topic.new.ipynb"
    assert sources(mine / "01_topic.ipynb")[1] == "guess = 5"
    assert sources(mine / "01_topic.new.ipynb")[1] == "2 + 2"
    assert refresh(course, mine) == []  # said once
    assert len(list(mine.glob("*.ipynb"))) == 2


def test_a_newer_version_replaces_the_one_beside_it_unless_that_was_changed_too(course, mine):
    refresh(course, mine)
    edit(mine / "01_topic.ipynb")
    for text in ("2 + 2", "3 + 3"):
        nbformat.write(chapter(text), course / "01_topic.ipynb")
        assert refresh(course, mine)[0].endswith("01_topic.new.ipynb")
    assert sources(mine / "01_topic.new.ipynb")[1] == "3 + 3"
    edit(mine / "01_topic.new.ipynb", "mine too")
    nbformat.write(chapter("4 + 4"), course / "01_topic.ipynb")
    assert refresh(course, mine)[0].endswith("01_topic.new2.ipynb")
    assert sources(mine / "01_topic.new.ipynb")[1] == "mine too"
    assert sources(mine / "01_topic.new2.ipynb")[1] == "4 + 4"


@pytest.mark.parametrize("change", ["outputs", "unreadable", "note gone"])
def test_outputs_broken_files_and_a_lost_note_are_the_readers_too(course, mine, change):
    refresh(course, mine)
    target = mine / "01_topic.ipynb"
    if change == "outputs":
        notebook = nbformat.read(target, as_version=4)
        notebook.cells[1].outputs = [new_output("stream", text="mine")]
        nbformat.write(notebook, target)
    elif change == "unreadable":
        target.write_text("{")
    else:
        edit(target)
        (mine / NOTE).write_text("[")
    before = target.read_bytes()
    nbformat.write(chapter("2 + 2"), course / "01_topic.ipynb")
    assert len(refresh(course, mine)) == 1
    assert target.read_bytes() == before


def test_a_deleted_copy_comes_back_and_changed_data_stay(course, mine):
    refresh(course, mine)
    (mine / "01_topic.ipynb").unlink()
    (mine / "data" / "text.txt").write_text("my words")
    (mine / "my_own.ipynb").write_text("{}")
    assert refresh(course, mine) == []
    assert sources(mine / "01_topic.ipynb")[1] == "1 + 1"
    assert (mine / "data" / "text.txt").read_text() == "my words"
    assert (mine / "my_own.ipynb").read_text() == "{}"


def test_the_courses_notebooks_can_be_copied(mine):
    assert refresh(minutes.NOTEBOOKS, mine) == []
    assert {path.name for path in mine.glob("*.ipynb")} == {path.name for path in minutes.NOTEBOOKS.glob("*.ipynb")}
    for path in mine.glob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))


def test_labkit_recognises_the_copy_by_the_file_that_is_written_there():
    assert guesses.READERS_COPY.name == NOTE
