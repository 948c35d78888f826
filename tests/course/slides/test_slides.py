"""The slides: what a lecturer shows, without a network, and each of 1440 × 810."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import chromium
from tools.slides import __main__ as command
from tools.slides import assets, look, pages


def installed(name):
    return pytest.importorskip(name) is not None


def cell(made, kind):
    made.metadata["slideshow"] = {"slide_type": kind}
    return made


@pytest.fixture
def folder(tmp_path):
    """The slides of a notebook whose second slide is too long, and whose third has notes."""
    code = new_code_cell("x = 1", execution_count=7, outputs=[new_output("stream", text="one\n")])
    bar = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "a bar"}
    code.outputs.append(new_output("display_data", bar))
    long = new_code_cell("\n".join(f"line_{n} = {n}" for n in range(120)))
    wide = new_code_cell("print()", outputs=[new_output("stream", text="wide " * 200)])
    link = "See [03](03_a_linear_model.ipynb#peak) and [the page](../docs/times.md), $a_1 < b$.\n\n$$\\sqrt{2}$$"
    cells = [
        cell(new_markdown_cell(f"# A title\n\n{link}"), "slide"),
        cell(code, "fragment"),
        cell(long, "slide"),
        cell(new_markdown_cell("# The last"), "slide"),
        cell(wide, "fragment"),
        cell(new_markdown_cell("Ask who was off."), "notes"),
        cell(new_markdown_cell("left out"), "skip"),
    ]
    path = tmp_path / "01_topic.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    installed("sphinx_revealjs")
    command.write([path], tmp_path / "slides")
    return tmp_path / "slides"


def test_a_slide_shows_no_prompt_and_no_widget(folder):
    text = (folder / "01_topic.slides.html").read_text(encoding="utf-8")
    body = text[text.index("<body") :]
    assert "a bar" not in body and "left out" not in body
    assert "In&nbsp;[" not in body and "Out[" not in body and "[7]" not in body
    assert "A title" in body and "one" in body
    assert '<aside class="notes">' in body and "Ask who was off." in body


def test_formulas_are_drawn_by_the_browser_and_links_lead_to_slides(folder):
    text = (folder / "01_topic.slides.html").read_text(encoding="utf-8")
    assert (
        text.count("<math") == 2 and "<msqrt>" in text and "$" not in text[text.index("A title") : text.index("sqrt")]
    )
    assert 'href="03_a_linear_model.slides.html"' in text
    assert 'href="../docs/times.md"' in text


def test_a_page_names_no_other_host(folder):
    text = (folder / "01_topic.slides.html").read_text(encoding="utf-8")
    fetched = re.findall(r'(?:src|href)="([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    assert not [one for one in fetched if "//" in one and not one.lstrip("'\"").startswith("data:")]
    assert "MathJax" not in text and "require(" not in text
    here = [one for one in fetched if one.startswith("assets/")]
    assert len(here) >= 6 and all((folder / one).is_file() for one in here)


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(assets.importlib.util, "find_spec", lambda name: None)
    assert command.main([str(_empty(tmp_path)), f"--output-dir={tmp_path / 'slides'}"]) == 1
    assert "sphinx-revealjs, which is not installed" in capsys.readouterr().err


def test_a_notebook_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit):
        command.main(["none.ipynb"])
    assert "no such notebook: none.ipynb" in capsys.readouterr().err


def test_the_notebook_that_is_given_stays_as_it_is(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("1", outputs=[new_output("display_data", {pages.WIDGET: {}})])])
    assert pages.of_lecturer(notebook).cells[0].outputs == []
    assert len(notebook.cells[0].outputs) == 1


def _empty(folder):
    nbformat.write(new_notebook(cells=[]), folder / "00_empty.ipynb")
    return folder / "00_empty.ipynb"


@pytest.fixture
def browser():
    if chromium.FOUND is None:
        pytest.skip("there is no Chromium")
    installed("websocket")
    opened = chromium.Chromium(look.WIDTH, look.HEIGHT)
    yield opened
    opened.close()


@pytest.fixture
def served(folder):
    server = chromium.Server(folder)
    yield server.url
    server.close()


@pytest.mark.browser
def test_a_slide_that_is_too_long_scrolls_and_the_others_fit(folder, browser):
    from collections import Counter

    counts: Counter = Counter()
    assert list(look.problems(folder, counts=counts)) == []
    assert counts == {"fit": 2, "scroll": 1}


# The text of each slide, the size of its type, whether a fragment is first, and how many fragments it has.
SLIDES = """leaves().map(s => ({
    text: s.textContent.replace(/\\s+/g, ' ').trim(), size: parseFloat(s.style.getPropertyValue('--size')),
    hidden: s.firstElementChild.classList.contains('fragment'), fragments: s.querySelectorAll('.fragment').length,
}))"""


def shown(browser, tmp_path, *cells):
    """The slides that the browser makes of these cells."""
    installed("sphinx_revealjs")
    path = tmp_path / "01_topic.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    command.write([path], tmp_path / "slides")
    server = chromium.Server(tmp_path / "slides")
    browser.open(f"{server.url}01_topic.slides.html")
    browser.wait(look.READY)
    found = browser.evaluate(SLIDES)
    server.close()
    return found


@pytest.mark.browser
def test_short_slides_are_joined_and_a_heading_begins_a_new_one(tmp_path, browser):
    cells = [
        cell(new_markdown_cell("# First"), "slide"),
        cell(new_markdown_cell("A question?"), "slide"),
        cell(new_code_cell("guess = 1"), "subslide"),
        cell(new_markdown_cell("Its notes."), "notes"),
        cell(new_markdown_cell("An answer."), "fragment"),
        cell(new_markdown_cell("More notes."), "notes"),
        cell(new_markdown_cell("## Second"), "subslide"),
    ]
    first, second = shown(browser, tmp_path, *cells)
    assert first["text"] == "First A question? guess = 1 An answer. Its notes. More notes."
    assert (first["fragments"], first["size"]) == (3, 24)
    assert (second["text"], second["fragments"]) == ("Second", 0)


@pytest.mark.browser
def test_a_sentence_joins_what_follows_it(tmp_path, browser):
    lines = "\n".join(f"line_{n} = {n}" for n in range(22))
    cells = [
        cell(new_code_cell(lines), "slide"),
        cell(new_markdown_cell("The sentence."), "slide"),
        cell(new_code_cell(lines), "slide"),
    ]
    texts = [slide["text"].split(" line_")[0] for slide in shown(browser, tmp_path, *cells)]
    assert [text.split(" = ")[0] for text in texts] == ["line_0", "The sentence."]


@pytest.mark.browser
def test_a_heading_does_not_stay_alone(tmp_path, browser):
    cells = [
        cell(new_markdown_cell("# First\n\n" + "\n\n".join(["A paragraph."] * 5)), "slide"),
        cell(new_code_cell("one = 1\none + 1"), "slide"),
        cell(new_code_cell("two = 2\ntwo + 2"), "slide"),
        cell(new_code_cell("\n".join(f"line_{n} = {n}" for n in range(26))), "slide"),
    ]
    first, second = shown(browser, tmp_path, *cells)
    assert first["text"].endswith("two + 2") and first["fragments"] == 2
    assert second["text"].startswith("line_0") and second["fragments"] == 0


@pytest.mark.browser
def test_a_slide_of_many_cells_is_divided_and_not_small(tmp_path, browser):
    codes = ["\n".join(f"line_{k}_{n} = {n}" for n in range(12)) for k in range(6)]
    cells = [cell(new_markdown_cell("# First"), "slide"), *(cell(new_code_cell(one), "fragment") for one in codes)]
    slides = shown(browser, tmp_path, *cells)
    assert len(slides) > 1
    assert all(slide["size"] >= 20 and not slide["hidden"] for slide in slides)
    assert " ".join(slide["text"] for slide in slides).split() == " ".join(["First", *codes]).split()


@pytest.mark.browser
def test_a_slide_that_does_not_fit_is_reported(folder, browser):
    script = folder / "assets" / "fit.js"
    script.write_text(script.read_text().replace("fitAll();\n  document", "document"))
    assert [line for line in look.problems(folder) if "slide 2.1 ends" in line]


@pytest.mark.browser
def test_the_speakers_view_opens_without_a_network_and_has_the_notes(served, browser):
    browser.open(f"{served}01_topic.slides.html")
    browser.wait(look.READY)
    browser.evaluate("Reveal.slide(2, 0)")  # the notes stand behind its fragment, which is not shown yet
    browser.evaluate("{ const open = window.open; window.open = (...given) => (window.speaker = open(...given)); }")
    browser.press("s", 83, "s")
    notes = "window.speaker?.document.querySelector('.speaker-controls-notes .value')?.textContent ?? ''"
    browser.wait(f"({notes}).includes('Ask who was off.')")
    assert browser.said == []
    assert [asked for asked in browser.requested if not asked.startswith((served, "data:", "blob:", "about:"))] == []


@pytest.mark.browser
def test_every_slide_of_the_course_fits_or_scrolls(tmp_path, browser):
    installed("sphinx_revealjs")
    assert command.main([f"--output-dir={tmp_path}"]) == 0
    assert list(look.problems(tmp_path)) == []
