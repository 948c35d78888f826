"""The site: what a notebook becomes, where links lead, and a build without a warning or a dead link."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("myst_nb", reason="the site needs the extra docs; course.py installs it")

from tools.site import __main__ as command  # noqa: E402
from tools.site import browser, chapters, check, cite, exactness, links, notebooks, repository, tables  # noqa: E402
from tools.site.moved import MOVED  # noqa: E402
from tools.site.stage import Stage  # noqa: E402

NUMBERS = {"01": "notebooks/01_a.ipynb", "03b": "notebooks/03b_c.ipynb", "12": "notebooks/12_d.ipynb"}


# --- chapters ----------------------------------------------------------------------------------------


def notebook(*cells):
    return {"cells": list(cells), "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5}


def code(source, *outputs, tags=(), **metadata):
    made = {"cell_type": "code", "source": source, "outputs": list(outputs), "execution_count": 1, "id": "x"}
    return {**made, "metadata": {"tags": list(tags), **metadata}}


def write(folder, name, heading):
    path = folder / name
    cell = {**notebooks.markdown(f"# {heading}\n\n**25 minutes**"), "id": "a"}
    path.write_text(json.dumps(notebook(cell)), encoding="utf-8")


def test_chapters_and_their_parts_are_found(tmp_path):
    for name, heading in (
        ("03b_x.ipynb", "03b · Which bytes?"), ("18_y.ipynb", "18 · Who sends what?"), ("03_z.ipynb", "03 · Where?"),
    ):  # fmt: skip
        write(tmp_path, name, heading)
    found = chapters.find(tmp_path)
    assert [(one.key, one.second, one.minutes) for one in found] == [
        ("03", False, 25),
        ("03b", True, 25),
        ("18", False, 25),
    ]
    assert [one.part[:9] for one in found] == ["Part II ·", "Part II ·", "Part IV ·"]


def test_a_notebook_without_a_heading_is_named(tmp_path):
    cell = {**notebooks.markdown("no heading"), "id": "a"}
    (tmp_path / "03_x.ipynb").write_text(json.dumps(notebook(cell)), encoding="utf-8")
    with pytest.raises(ValueError, match=r"03_x\.ipynb does not begin with a heading"):
        chapters.find(tmp_path)


# --- a notebook as a page ----------------------------------------------------------------------------


def shown(*cells):
    return notebooks.page(notebook(*cells), str.upper)["cells"]


def test_a_solution_is_collapsed_and_an_exercise_is_not():
    task, solution = shown(code("answer = ...", tags=["exercise"]), code("answer = 4", tags=["solution"]))
    assert "hide-cell" in solution["metadata"]["tags"] and "hide-cell" not in task["metadata"]["tags"]
    assert solution["metadata"]["mystnb"]["code_prompt_show"] == "Show the solution"


def test_what_a_page_cannot_use_is_left_out():
    bar = {"output_type": "display_data", "metadata": {}, "data": {"application/vnd.jupyter.widget-view+json": {}}}
    rows = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"application/vnd.labkit.techniques+json": [], "text/plain": "t"},
    }
    said = {**notebooks.markdown("say this"), "metadata": {"slideshow": {"slide_type": "notes"}}}
    [cell] = shown(code("import labkit", bar, rows), said)
    assert cell["source"] == "import labkit"
    assert [output["data"] for output in cell["outputs"]] == [{"text/plain": "t"}]


def test_each_figure_has_its_alternative_text():
    def figure(alt):
        return {"output_type": "display_data", "data": {"image/png": ""}, "metadata": {"image/png": {"alt": alt}}}

    first, second = shown(code("draw()", figure("rises"), figure("falls")))
    assert [cell["metadata"]["mystnb"]["image"]["alt"] for cell in (first, second)] == ["rises", "falls"]
    assert "remove-input" in second["metadata"]["tags"] and "remove-input" not in first["metadata"]["tags"]


def test_the_notebook_that_is_given_stays_as_it_is():
    given = notebook(code("x", tags=["solution"]), notebooks.markdown("text"))
    before = json.dumps(given)
    notebooks.page(given, str.upper)
    assert json.dumps(given) == before


# --- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("see chapter 01.", "see [chapter 01](01_a.ipynb)."),
        ("Chapter 12 says", "[Chapter 12](12_d.ipynb) says"),
        ("(chapter\n03b)", "([chapter\n03b](03b_c.ipynb))"),
        ("chapters 01, 12 and 03b", "chapters [01](01_a.ipynb), [12](12_d.ipynb) and [03b](03b_c.ipynb)"),
        ("chapters 01 to 12", "chapters [01](01_a.ipynb) to [12](12_d.ipynb)"),
        ("chapter 77 is not there, chapter 2012 is a year", None),
        ("[chapter 01](elsewhere.md), `chapter 01`", None),
        ("```\nchapter 01\n```", None),
        ("## After chapter 01", None),
        ("that book, chapter 12", None),
    ],
)
def test_mentions_of_chapters(text, linked):
    assert links.mentions(text, "notebooks/05_x.ipynb", NUMBERS) == (linked or text)


def test_a_chapter_does_not_link_to_itself():
    assert links.mentions("chapter 01", NUMBERS["01"], NUMBERS) == "chapter 01"


@pytest.mark.parametrize(
    ("text", "led"),
    [
        ("[a](../simgpu/a.py)", "[a](../sources/simgpu/a.py.md)"),
        ("[`a`](../simgpu/a.py#L3)", "[`a`](../sources/simgpu/a.py.md)"),
        ('[a](../simgpu/a.py "a title")', '[a](../sources/simgpu/a.py.md "a title")'),
        ("[a](06_y.ipynb#words)", "[a](06_y.ipynb#words)"),
        ("[a](https://a.b/c) [b](#there) [c](../nowhere)", None),
        ("`[a](../simgpu/a.py)`", None),
        ("~~~\n[a](../simgpu/a.py)\n~~~", None),
    ],
)
def test_links_of_the_repository(text, led):
    def resolve(path):
        pages = {"simgpu/a.py": "sources/simgpu/a.py.md", "notebooks/06_y.ipynb": "notebooks/06_y.ipynb"}
        return pages.get(path)

    assert links.rewrite(text, "notebooks/05_x.ipynb", resolve) == (led or text)


# --- the repository's address ------------------------------------------------------------------------


def test_the_address_is_not_invented(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n')
    assert repository.url({}, project) is None
    assert repository.url({"LABKIT_REPOSITORY": "https://github.com/a/b/"}, project) == "https://github.com/a/b"
    project.write_text('[project]\nname = "x"\n[project.urls]\nRepository = "https://github.com/c/d.git"\n')
    assert repository.url({}, project) == "https://github.com/c/d"
    assert repository.url({"LABKIT_REPOSITORY": ""}, project) is None
    with pytest.raises(ValueError, match=r"wanted https://host/owner/name"):
        repository.url({"LABKIT_REPOSITORY": "github.com/a/b"}, project)


# --- pages that are written --------------------------------------------------------------------------


def test_tables_are_read_as_they_are_written():
    rows = [["a|b", "+1.5 %"], ["c", "× 1,024"]]
    text = "## Title\n\n" + tables.write(["what", "number"], rows)
    [(title, found)] = tables.read(text)
    assert title == "Title" and [row["what"] for row in found] == ["a\\|b", "c"]
    assert [tables.number(row["number"]) for row in found] == [1.5, 1024]
    with pytest.raises(ValueError, match="no table under the heading 'Other'"):
        tables.find(text, "Other")


def test_how_to_cite():
    page = cite.page(
        "title: A title\nversion: 1.2\nmessage: Please.\nauthors:\n- name: They\n", "https://github.com/a/b"
    )
    assert "title    = {{A title}}" in page and "url      = {https://github.com/a/b}" in page
    assert "They: *A title*, version 1.2, https://github.com/a/b." in page


def test_the_page_of_exactness_counts_what_the_file_says(tmp_path):
    against = "the oracle: PyTorch's CUDA host code"
    result = {
        "rung": 2,
        "result": "nets",
        "against": against,
        "unit": "events",
        "torch": "2.13.0",
        "date": "2026-11-21",
    }
    peak = {"peak": 512, "simulated peak": 512}
    clock = {"published (s)": 1.0, "simulated (s)": 1.2}
    results = [
        {**result, "items": [["one", 10, 10, "", {}], ["two", 10, 9, "one more", {}]]},
        {**result, "rung": 3, "result": "peaks", "items": [["one", 1, 1, "", peak]]},
        {**result, "rung": 7, "result": "clock", "unit": "times to 15 %", "items": [["p", 1, 0, "+20 %", clock]]},
    ]
    page = exactness.page(results, tmp_path / "pictures")
    ladder = next(rows for title, rows in tables.read(page) if title == "The ladder")
    assert [row["the oracle"] for row in ladder] == ["", "1 of 2", "1 of 1", "", "", "", "0 of 1"]
    assert "`two` | nets | 9 of 10 events" in page and "0 of 1 times to 15 %" in page
    assert "No GPU has recorded anything for this project yet" in page
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        *("clock-dark.svg", "clock-light.svg", "peaks-dark.svg", "peaks-light.svg")
    ]


def test_the_glossary_names_chapters_that_have_the_word():
    texts = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        printed = [
            "".join(o.get("text", o.get("data", {}).get("text/plain", ""))) for c in cells for o in c.get("outputs", [])
        ]
        texts[path.name.partition("_")[0]] = " ".join(["".join(cell["source"]) for cell in cells] + printed).lower()
    entries = re.split(r"^### ", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), flags=re.M)[1:]
    assert len(entries) > 40
    for entry in entries:
        name, body = entry.partition("\n## ")[0].split("\n", 1)
        words = [*name.removeprefix("the ").removesuffix("'s figure").split(", "), *re.findall(r"\*([\w -]+)\*", body)]
        named = re.findall(r"[Cc]hapters?\s((?:\d\d[a-z]?(?:,\s|\sand\s)?)+)", body)
        assert named, f"{name}: no chapter"
        for number in re.findall(r"\d\d[a-z]?", named[-1]):
            assert any(word.lower() in " ".join(texts[number].split()) for word in words), (
                f"{name}: not in chapter {number}"
            )


# --- the site ----------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    built, folder = tmp_path / "html", tmp_path / "thesis"
    for path, name in ((built, "objects.inv"), (folder, "thesis.txt")):
        path.mkdir()
        (path / name).touch()
    with pytest.raises(SystemExit, match="holds something else than a site"):
        command.put(built, folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    command.put(built, tmp_path / "new")
    (tmp_path / "new" / "old.html").touch()
    command.put(built, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["objects.inv"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as for publishing: with an address, every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "tools.site", str(folder / "site"), "--strict", "--work", str(folder / "work")],
        cwd=ROOT, capture_output=True, text=True, env=environment(LABKIT_REPOSITORY="https://github.com/owner/name"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.site
def test_every_chapter_is_a_page_and_no_link_is_dead(site):
    """Built without a warning: that is what the fixture asserts."""
    wanted = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in (site / "notebooks").glob("*.html")}
    assert wanted and pages == {f"notebooks/{name}" for name in wanted} | set(MOVED)
    assert check.dead_links(site) == []


@pytest.mark.site
@pytest.mark.parametrize("former", MOVED)
def test_the_page_of_a_merged_chapter_leads_to_its_section(site, former):
    assert not (ROOT / f"{former}.ipynb").exists()
    text = (site / f"{former}.html").read_text(encoding="utf-8")
    page, section = re.fullmatch(r'[^"]*?([^"/]+)#([^"]+)', re.search(r'content="0; url=([^"]+)"', text)[1]).groups()
    target = (site / former).parent / page
    assert f'id="{section}"' in target.read_text(encoding="utf-8")
    assert f'href="{page}#{section}"' in text


@pytest.mark.site
def test_answers_are_folded(site):
    for path in (site / "notebooks").glob("*.html"):
        if f"notebooks/{path.stem}" in MOVED:
            continue
        page = path.read_text(encoding="utf-8")
        cells = json.loads((ROOT / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
        solutions = [cell for cell in cells if "solution" in cell["metadata"].get("tags", [])]
        folded = re.findall(r'<details class="[^"]*\bhide\b[^"]*"([^>]*)>', page)
        assert folded == [""] * len([cell for cell in solutions if cell["cell_type"] == "code"]), path.name


@pytest.mark.site
def test_pages_fetch_nothing(site):
    """Scripts, styles, fonts and pictures all come with the site."""
    for path in site.rglob("*.html"):
        if path.relative_to(site).parts[0] != "_static":
            loaded = re.findall(
                r'<(?:script|img|link|iframe)[^>]*?(?:src|href)="([^"]*)"', path.read_text(encoding="utf-8")
            )
            assert [one for one in loaded if one.startswith(("http:", "https:", "//"))] == [], path


@pytest.mark.site
def test_launch_buttons_lead_to_the_notebook(site):
    page = (site / "notebooks" / "03_a_linear_model.html").read_text(encoding="utf-8")
    where = "owner/name/blob/main/notebooks/03_a_linear_model.ipynb"
    assert f"https://colab.research.google.com/github/{where}" in page
    assert "https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/notebooks/03_a_linear_model.ipynb" in page
    assert f"https://kaggle.com/kernels/welcome?src=https://github.com/{where}" in page


@pytest.mark.site
def test_the_notebook_that_a_page_offers_is_the_readers(site):
    offered = json.loads((site / "_sources" / "notebooks" / "03_a_linear_model.ipynb").read_text(encoding="utf-8"))
    code_cells = [cell for cell in offered["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code_cells)
    assert any("guess_forward = ..." in "".join(cell["source"]) for cell in code_cells)


def test_without_an_address_nothing_is_invented_and_a_second_staging_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_REPOSITORY", "")
    stage = Stage(tmp_path)
    stage.run()
    page = (tmp_path / "sources/simgpu/allocator/caching.py.md").read_text(encoding="utf-8")
    assert stage.address is None and "In the repository" not in page and "class " in page
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in before if path.suffix != ".svg"}
    (tmp_path / "notebooks" / "99_gone.ipynb").write_text("{}")
    Stage(tmp_path).run()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


# --- several languages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "page", "links"),
    [
        ("en", "index", {"中文": "zh_CN/index.html", "Deutsch": "de/index.html"}),
        ("en", "notebooks/00", {"中文": "../zh_CN/notebooks/00.html", "Deutsch": "../de/notebooks/00.html"}),
        ("zh_CN", "notebooks/00", {"English": "../../notebooks/00.html", "Deutsch": "../../de/notebooks/00.html"}),
        ("de", "index", {"English": "../index.html", "中文": "../zh_CN/index.html"}),
    ],
)
def test_a_page_leads_to_itself_in_the_other_languages(language, page, links):
    from tools.site import conf

    app = SimpleNamespace(config=SimpleNamespace(language=language, in_languages="en,zh_CN,de"))
    context = {"header_buttons": []}
    conf.add_languages(app, page, "page.html", context, None)
    assert {one["text"]: one["url"] for one in context["header_buttons"]} == links


def test_a_site_of_one_language_has_no_such_button():
    from tools.site import conf

    context = {"header_buttons": []}
    conf.add_languages(SimpleNamespace(config=SimpleNamespace(language="en", in_languages="")), "a", "", context, None)
    assert context == {"header_buttons": []}


def test_templates_are_no_pages_in_any_language(tmp_path):
    for folder in ("_static", "de/_static", "de"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "x.html").write_text('<a href="{{ nowhere }}">x</a>')
    assert check.dead_links(tmp_path) == ["de/x.html: {{ nowhere }}"]


def test_the_browser_leaves_templates_and_sources_out_in_every_language(tmp_path):
    for page in (
        "index",
        "_static/a",
        "sources/b",
        "zh_CN/index",
        "zh_CN/_static/a",
        "zh_CN/sources/b",
        "zh_CN/search",
    ):
        (tmp_path / f"{page}.html").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{page}.html").touch()
    assert browser.looked_at(tmp_path) == ["index.html", "zh_CN/index.html"]


def test_all_languages_and_one_of_them_is_refused(capsys):
    with pytest.raises(SystemExit, match="--all has every language: leave --language out"):
        command.main(["--all", "--language", "zh"])
