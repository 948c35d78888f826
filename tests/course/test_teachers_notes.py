"""The notes for teachers: every chapter has its own, and their numbers are those that the chapter prints."""

import re
from pathlib import Path

import nbformat
import pytest

from tools import order

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = sorted((ROOT / "docs").glob("notes_part_*.md"))
PARTS = ("**What goes wrong.**", "**To skip.**", "**Ask.**", "**To set.**")
CLAIM = re.compile(r"\*\*(\d+) minutes\*\*, and (\d+) for the exercises")


def sections():
    """The text of each chapter's notes, by the name of the chapter."""
    found = {}
    for page in PAGES:
        for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            name = re.search(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", part)
            assert name, f"{page.name}: a section without a link to its chapter: {part[:60]}"
            assert name[1] not in found, f"{name[1]} has notes twice"
            found[name[1]] = part
    return found


SECTIONS = sections()


def printed(notebook):
    """All that the stored outputs of a notebook say, as text."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return re.sub(r"\s+", " ", " ".join(texts))


def test_the_notes_are_of_the_chapters_that_there_are():
    assert list(SECTIONS) == [path.stem for path in CHAPTERS]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_its_notes(path):
    text, first = SECTIONS[path.stem], nbformat.read(path, as_version=4).cells[0].source
    title = order.TITLE.match(first)
    assert title is not None and text.startswith(f"{title['key']} · {title['question']}\n")  # without its label
    minutes, exercises = CLAIM.search(first).groups()
    assert f"· {minutes} minutes, {exercises} for the exercises" in text
    assert [part for part in PARTS if text.count(part) != 1] == []
    questions = re.findall(r"^\d\. (.+?)\n\n   \*\*Answer\.\*\* ", text, flags=re.MULTILINE | re.DOTALL)
    assert 2 <= len(questions) == text.count("**Answer.**") <= 3
    assert all("?" in question for question in questions)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_numbers_of_the_notes_are_printed_in_the_chapter(path):
    said = printed(nbformat.read(path, as_version=4))
    numbers = re.findall(r"`(\d[\d.,]*(?: [\w% ]+| %)?)`", re.sub(r"\s+", " ", SECTIONS[path.stem]))
    assert numbers
    missing = [n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n)}(?![\d])", said)]
    assert missing == []
