"""Translations: messages and their places, catalogues that are up to date and keep what must be kept, the edition."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("babel", reason="translations need the extra docs; course.py installs it")

from tools.site import links, search
from tools.site.language import Language
from tools.translation import __main__ as command
from tools.translation import catalogues, edition, messages, sameness

ROOT = Path(__file__).parents[2]
FIRST = "notebooks/00b_this_device.ipynb"
CATALOGUES = [(one, page) for one in catalogues.languages() for page in catalogues.translated_pages(one)]


def english(page):
    return json.loads((ROOT / page).read_text(encoding="utf-8"))


# --- messages ----------------------------------------------------------------------------------------

TEXT = """\
# 3 · Where?

A paragraph that
goes on.

- one item
  with two lines
- `code()`

| counter | what |
|---|---|
| `a` \\| b | so |
| 1.5 | |

> A quotation.

```
no message
```
"""


def test_markdown_is_cut_into_messages():
    found = [(one.kind, one.text) for one in messages.split(TEXT)]
    assert found == [
        ("heading", "3 · Where?"),
        ("paragraph", "A paragraph that goes on."),
        ("list item", "one item with two lines"),
        ("table cell", "counter"),
        ("table cell", "what"),
        ("table cell", "`a` | b"),
        ("table cell", "so"),
        ("quotation", "A quotation."),
    ]


def test_translations_stand_in_the_places_of_their_messages():
    made = messages.translated(TEXT, lambda text: text.upper().replace("`A`", "`a`"))
    assert made == TEXT.replace("that\ngoes", "that goes").replace("item\n  with", "item with").upper().replace(
        "`A`", "`a`"
    ).replace("`CODE()`", "`code()`").replace("NO MESSAGE", "no message")


def test_hard_breaks_are_kept_and_stand_as_far_in():
    text = "- one line\\\n  and another"
    assert [one.text for one in messages.split(text)] == ["one line\\\nand another"]
    assert messages.translated(text, lambda message: "eins\\\nzwei") == "- eins\\\n  zwei"


@pytest.mark.parametrize("text", ["`x = 1`", "$a + b$", "12 × 3.5", "%count%", ":::{note}", "**1**"])
def test_a_text_without_a_word_is_no_message(text):
    assert messages.split(text) == []


@pytest.mark.parametrize("page", catalogues.pages())
def test_without_translations_a_page_stays_to_the_letter_and_with_its_own_text_it_shows_the_same(page):
    content = (ROOT / page).read_text(encoding="utf-8")
    cells = json.loads(content)["cells"] if page.endswith(".ipynb") else [{"cell_type": "markdown", "source": content}]
    for text in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"):
        assert messages.translated(text, lambda message: None) == text
        same = messages.translated(text, lambda message: message)
        shown, expected = messages.PARSER.render(same), messages.PARSER.render(text)
        assert shown.replace("\n", " ") == expected.replace("\n", " ")


# --- what a translation must share with the English --------------------------------------------------


@pytest.mark.parametrize(
    ("text", "translation", "problem"),
    [
        ("`a()` grows", "wächst", "lacks `a()`"),
        ("`a()` grows", "`b()` wächst", "has `b()`, which the English has not"),
        ("see [this](a.md)", "siehe [dies](b.md)", "lacks a link to a.md"),
        ("4,096 B of 512", "4.096 B von 512", "lacks the number 4,096"),
        ("two float16 tensors", "zwei float32-Tensoren", "lacks the name float16"),
        ("**bold** word", "fettes Wort", "lacks bold"),
        ("**Segment.** It", "**段。**它", "lacks bold"),
        ("of $a + b$", "von $a - b$", "lacks $a + b$"),
        ("%count% chapters", "Kapitel", "lacks %count%"),
        ("a word", "- ein Wort", "would not stay in its place"),
        ("a word", "ein\n\nWort", "would not stay in its place"),
        ("a word", "ein\nWort", "would not stay in its place"),
        ('<a href="x">a</a>', '<a href="y">a</a>', 'lacks <a href="x">'),
    ],
)
def test_what_a_translation_lacks_is_named(text, translation, problem):
    assert problem in "\n".join(sameness.problems(text, translation))


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("On an A100, and on another, `a()` gives **4** of 80.", "在 A100 和另一块 A100 上，80 中 `a()` 给出 **4**。"),
        ("1. Is it ready?", "1. 准备好了吗？"),
        ("two, four or eight hours", "两小时、四小时或八小时"),
    ],
)  # fmt: skip
def test_what_is_kept_may_stand_in_another_order(text, translation):
    assert sameness.problems(text, translation) == []


# --- the catalogues of translations/ -----------------------------------------------------------------


@pytest.mark.parametrize(("language", "page"), CATALOGUES)
def test_a_catalogue_is_up_to_date_with_its_page(language, page):
    assert catalogues.is_up_to_date(language, page), f"{page} has changed; run: python -m tools.translation update"


@pytest.mark.parametrize(("language", "page"), CATALOGUES)
def test_translations_keep_code_links_and_numbers(language, page):
    catalogue = catalogues.read(catalogues.path_of(language, page), language)
    assert list(sameness.of_catalogue(catalogue)) == []


@pytest.mark.parametrize(("language", "page"), CATALOGUES)
def test_an_update_of_what_is_up_to_date_changes_nothing(language, page):
    stored = catalogues.path_of(language, page).read_bytes()
    assert catalogues.content(catalogues.updated(language, page)) == stored


def test_nearly_all_of_chapter_00_is_in_chinese():
    """It is the proof of the machinery. A sentence that has just changed in English may wait for a translator."""
    left, of = Language("zh_CN").left(FIRST)
    assert of > 70 and left <= of / 10


def test_terms_are_translated_as_the_translators_table_says():
    page = (ROOT / "translations" / "zh_CN" / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([\w ]+) \| ([^|]+) \|", page, flags=re.MULTILINE)[1:]
    assert len(table) > 30
    catalogue = catalogues.read(catalogues.path_of("zh_CN", FIRST), "zh_CN")
    done = [message for message in catalogue if message.id and message.string and not message.fuzzy]
    for term, chinese in table:
        whole = re.compile(rf"(?<![\w-]){term}s?(?![\w-])", re.IGNORECASE)
        for message in done:
            if whole.search(re.sub(r"`[^`]*`|\]\([^)]*\)|\*[^*]*PyTorch[^*]*\*", "", message.id)):
                assert any(one.strip() in message.string for one in chinese.split("、")), f"{term}: {message.string}"


# --- catalogues that follow their pages --------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    """A course of one page, and a function that writes it anew."""
    (tmp_path / "docs").mkdir()

    def write(*paragraphs):
        (tmp_path / "docs" / "a.md").write_text("\n\n".join(paragraphs), encoding="utf-8")

    write("# Title", "The first paragraph of two.", "Another one.")
    return tmp_path, write


def stored(root, **translations):
    path = catalogues.path_of("de", "docs/a.md", root / "translations")
    catalogue = catalogues.updated("de", "docs/a.md", root / "translations", root)
    for message in catalogue:
        message.string = translations.get(str(message.id).split(" ")[0], message.string)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(catalogues.content(catalogue))


def test_a_changed_message_is_fuzzy_and_stays_english_until_somebody_looks(course):
    root, write = course
    folder = root / "translations"
    stored(root, Title="Titel", The="Der erste Absatz von zweien.", Another="Noch einer.")
    write("# Title", "Another one.", "The first paragraph of three.")
    assert not catalogues.is_up_to_date("de", "docs/a.md", folder, root)
    stored(root)
    assert catalogues.is_up_to_date("de", "docs/a.md", folder, root)
    translate = catalogues.translator("de", "docs/a.md", folder)
    assert [translate(text) for text in catalogues.texts("docs/a.md", root)] == ["Titel", "Noch einer.", None]
    written = catalogues.path_of("de", "docs/a.md", folder).read_text(encoding="utf-8")
    assert "#, fuzzy" in written and '#| msgid "The first paragraph of two."' in written
    assert messages.translated("The first paragraph of three.", translate) == "The first paragraph of three."


def test_what_has_gone_stays_in_the_file_and_comes_back(course):
    root, write = course
    stored(root, Another="Noch einer.")
    write("# Title")
    stored(root)
    assert '#~ msgstr "Noch einer."' in catalogues.path_of("de", "docs/a.md", root / "translations").read_text()


def test_a_catalogue_without_its_page_and_a_broken_one_are_named(course):
    root, _ = course
    stored(root)
    (root / "docs" / "a.md").unlink()
    with pytest.raises(ValueError, match=r"translations/de/docs/a\.po is of a page that is not there: docs/a"):
        catalogues.translated_pages("de", root / "translations", root)
    broken = root / "translations" / "de" / "docs" / "a.po"
    broken.write_text('msgid "a"\nno translation\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.po"):
        catalogues.read(broken, "de")


@pytest.mark.parametrize("name", ["zh_CN", "zh-CN", "zh_cn", "zh"])
def test_a_language_by_its_code_or_its_beginning(name):
    assert catalogues.language(name) == "zh_CN"


def test_an_unknown_language_or_page_is_answered_with_what_there_is():
    with pytest.raises(ValueError, match="no language 'xx' in translations/; there are: zh_CN"):
        catalogues.language("xx")
    with pytest.raises(SystemExit, match="no language 'klingon': wanted a code such as de"):
        command.main(["update", "klingon", "00"])
    with pytest.raises(SystemExit, match="no page '99': wanted a chapter's number or a path"):
        command.main(["update", "zh", "99"])
    with pytest.raises(SystemExit, match=r"no notebook: docs/glossary\.md"):
        command.main(["build", "zh", "docs/glossary.md"])


def test_templates_for_another_program(tmp_path):
    assert command.main(["extract", str(tmp_path)]) == 0
    made = catalogues.read((tmp_path / FIRST).with_suffix(".pot"), "en")
    assert [message.id for message in made if message.id] == list(catalogues.texts(FIRST))
    assert len(list(tmp_path.rglob("*.pot"))) == len(catalogues.pages())


# --- the edition -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in catalogues.pages() if page.endswith(".ipynb")])
def test_without_translations_the_edition_is_the_english_notebook(page):
    assert edition.notebook(english(page), lambda text: None) == english(page)


def test_all_but_the_markdown_is_the_english_one():
    ours, theirs = english(FIRST), json.loads(edition.content("zh_CN", FIRST))
    changed = []
    for cell, other in zip(ours["cells"], theirs["cells"], strict=True):
        if cell["cell_type"] == "markdown":
            changed.append(cell.pop("source") != other.pop("source"))
        assert cell == other
    assert sum(changed) > 0.9 * len(changed) > 0
    assert {key: ours[key] for key in ours if key != "cells"} == {key: theirs[key] for key in theirs if key != "cells"}
    nbformat.validate(nbformat.from_dict(json.loads(edition.content("zh_CN", FIRST))))


def test_the_links_of_a_translated_notebook_are_the_english_ones():
    def targets(notebook):
        texts = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
        return [re.findall(r"\]\(([^)]*)\)", text) for text in texts]

    assert targets(json.loads(edition.content("zh_CN", FIRST))) == targets(english(FIRST))


def test_the_chinese_chapter_00_gives_the_stored_outputs(tmp_path):
    """It is run by nbval, as the English one is."""
    assert command.main(["build", "zh", "00b", "--output-dir", str(tmp_path)]) == 0
    options = ["-c", str(ROOT / "pyproject.toml"), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path / Path(FIRST).name)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]


def test_a_translation_that_would_not_do_is_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(sameness, "of_catalogue", lambda catalogue: [("`a()` grows", "lacks `a()`")])
    with pytest.raises(SystemExit, match="nothing is built"):
        command.main(["build", "zh", "00", "--output-dir", str(tmp_path / "zh")])
    assert not (tmp_path / "zh").exists()


# --- the site ----------------------------------------------------------------------------------------


def test_a_mention_of_a_chapter_in_another_language_is_a_link():
    numbers = {"03": "notebooks/03_a.ipynb"}
    text = "在第 03 章里，`第 03 章`，第 99 章，chapter 03"
    linked = "在[第 03 章](03_a.ipynb)里，`第 03 章`，第 99 章，[chapter 03](03_a.ipynb)"
    assert links.mentions(text, "notebooks/00_x.ipynb", numbers, "第 %number% 章") == linked


def test_chinese_is_searched_by_characters_and_pairs():
    pytest.importorskip("sphinx")
    assert search.SearchChinese({}).split("显存峰值 of PyTorch") == [
        *("显", "存", "峰", "值", "显存", "存峰", "峰值"),
        *("of", "PyTorch"),
    ]
    assert search.SearchChinese({}).stem("Tensors") == "tensor"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site in Chinese, every warning an error."""
    pytest.importorskip("myst_nb", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.site", str(folder / "site"), "--language", "zh", "--strict"),
            *("--work", str(folder / "work")),
        ],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def page(site, name):
    return (site / f"{name}.html").read_text(encoding="utf-8")


@pytest.mark.site
def test_a_page_says_its_language_and_is_in_it(site):
    first = page(site, "notebooks/00b_this_device")
    assert '<html lang="zh-CN"' in first
    say = Language("zh_CN").say
    for words in ("Show the solution", "Part IV · Many GPUs", "GPU memory, byte by byte"):
        assert say(words) != words and say(words) in first
    assert "下一页" in first  # the theme's own
    assert '<a class="reference internal" href="03_a_linear_model.html">' in first


@pytest.mark.site
def test_a_page_that_is_in_english_says_so(site):
    said = Language("zh_CN").say("This page has not been translated yet.")
    assert said in page(site, "notebooks/01_page_allocation") and said in page(site, "docs/glossary")
    assert said not in page(site, "notebooks/00b_this_device") and said not in page(site, "index")


@pytest.mark.site
def test_the_notebook_that_a_page_offers_is_translated(site):
    offered = json.loads((site / "_sources" / "notebooks" / "00b_this_device.ipynb").read_text(encoding="utf-8"))
    theirs = json.loads(edition.content("zh_CN", FIRST))
    assert [cell["source"] for cell in offered["cells"]] == [cell["source"] for cell in theirs["cells"]]
    assert not any(cell.get("outputs") for cell in offered["cells"])
