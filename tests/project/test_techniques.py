"""The summary table of techniques: every chapter on saving memory has its rows, and the page is theirs."""

import json

import pytest

from labkit.techniques import MIME, collect
from tools.techniques import PAGE, ROOT, page

CHAPTERS = ("09", "10", "11", "12", "13", "14")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_on_saving_memory_ends_with_its_rows(chapter):
    lessons = sorted((ROOT / "notebooks").glob(f"{chapter}*_*.ipynb"))  # the chapter, and its second lesson
    cells = [cell for path in lessons for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert any(MIME in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


def test_each_method_has_one_row():
    assert collect(ROOT / "notebooks").table().index.is_unique


def test_the_page_is_what_the_notebooks_keep():
    assert PAGE.read_text(encoding="utf-8") == page(), "write it again: python -m tools.techniques"
