"""The summary table of techniques: every chapter on saving memory has its rows, and the page is theirs."""

import json

import pytest

from labkit.techniques import MIME, Technique, collect
from tools.techniques import PAGE, PEAKS, ROOT, page, times, what_peaks

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


def test_each_row_stands_under_what_peaks():
    text = page()
    for technique in collect(ROOT / "notebooks").rows:
        before, _, _ = text.partition(f"| {technique.method} | {technique.on} |")
        assert before.rpartition("\n## ")[2].startswith(what_peaks(technique))
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")][:-1] == list(PEAKS)


def test_a_method_that_nobody_has_sorted_in_is_named():
    new = Technique("prayer", "any model", (2, 1), None, "nothing else helps", "always", "T4")
    with pytest.raises(ValueError, match="'prayer' is under no title"):
        what_peaks(new)


def test_recorded_times_stand_beside_those_of_the_same_program():
    rows = [line for line in times().splitlines() if line.startswith("| ") and "×" in line]
    assert len(rows) == 7
    assert any(
        "gradient checkpointing | bert-large, 512 samples, V100 | × 1.29 |" in row for row in rows
    )  # 85.47 / 66.03
