"""The chapters have the course's shape, or are listed as not having it yet; a rule that is broken is found out."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import chapter_shape, minutes
from tools.chapter_shape import COLLAPSED, RULES, collapse, problems
from tools.not_yet import NOT_YET

NOTEBOOKS = sorted(minutes.NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_chapter_has_the_shape_or_is_listed(path):
    found = problems(path)
    listed = [name for name in NOT_YET.get(path.stem, ()) if name != "everywhere"]
    assert {name: lines for name, lines in found.items() if name not in listed} == {}
    assert [name for name in listed if name not in found] == [], "kept by now: take the names off in tools/not_yet.py"


def test_the_list_names_chapters_and_rules():
    assert set(NOT_YET) <= {path.stem for path in NOTEBOOKS}
    assert {name for names in NOT_YET.values() for name in names} <= {*RULES, "everywhere"}


# --- the rules, on a chapter that keeps them and on one that is good but for one thing ---------------------


def good_chapter():
    """A chapter of twenty minutes that keeps every rule, and would keep them with a minute more or less."""
    guesses = [new_code_cell(f"guess_{name} = ...  # e.g. 100 * MiB") for name in "abc"]
    compared = [new_code_cell(f"guesses.compare('{name}', guess=guess_{name}, measured=1)") for name in "abc"]
    text = new_markdown_cell("# 01 · Where does it go?\n\n**20 minutes**\n" + "word " * 3_450)
    figure = new_code_cell("plot()", outputs=[png(title="Memory", axes=["event", "MiB"], alt="A line rises.")])
    stub = new_code_cell("answer = ...\njudge(answer, right=1)", outputs=[new_output("stream", text="no answer yet\n")])
    solved = new_code_cell("judge(1, right=1)", outputs=[new_output("stream", text="Correct: 1 B\n")])
    stub.metadata["tags"], solved.metadata["tags"] = ["exercise"], ["solution"]
    solved.metadata["jupyter"] = dict(COLLAPSED)
    score = new_code_cell("guesses.score()")
    return new_notebook(cells=[text, *guesses, *compared, figure, stub, solved, score])


def png(**about):
    return new_output("display_data", {"image/png": "AA==", "text/plain": "figure"}, metadata={"image/png": about})


def printing(text):
    return new_output("stream", text=text)


@pytest.fixture
def broken(tmp_path):
    """The problems of a good chapter after a change to its cells."""

    def make(change=lambda cells: None, name="01_topic.ipynb"):
        notebook = good_chapter()
        change(notebook.cells)
        nbformat.write(notebook, tmp_path / name)
        return problems(tmp_path / name)

    return make


def test_a_good_chapter_has_no_problems(broken):
    assert broken() == {}


BROKEN = {
    ("heading", "wanted '# 01 · a question?'"): lambda c: c[0].update(source=c[0].source.replace("01 · ", "")),
    ("heading", "wanted '# 01"): lambda c: c[0].update(source=c[0].source.replace("?", ".")),
    ("minutes", "claims no minutes"): lambda c: c[0].update(source=c[0].source.replace("**20", "20")),
    ("minutes", "claims 30 minutes and takes"): lambda c: c[0].update(source=c[0].source.replace("**20", "**30")),
    ("cells", "code cell 10 has 13 lines"): lambda c: c[-1].update(source=c[-1].source + "\n\n1" * 12),
    ("decimals", "prints 168.00048828125"): lambda c: c[4].outputs.append(printing("168.00048828125 MiB")),
    ("figures", "without alternative text"): lambda c: c[7].update(outputs=[png(title="x", axes=["MiB"])]),
    ("figures", "without a title"): lambda c: c[7].update(outputs=[png(alt="x", axes=["MiB"])]),
    ("figures", "no axis of a figure has a unit"): lambda c: c[7].update(outputs=[png(alt="x", title="x", axes=["y"])]),
    ("solutions", "solution cell 1 is open"): lambda c: c[9].metadata.update(jupyter={"source_hidden": True}),
    ("exercises", "no stub calls judge"): lambda c: c[8].update(source="answer = ..."),
    ("exercises", "does not print 'no answer yet'"): lambda c: c[8].update(outputs=[]),
    ("exercises", "not judged to be correct"): lambda c: c[9].update(outputs=[printing("off by 3 B")]),
    ("guesses", "2 guesses"): lambda c: c[1].update(source="1"),
    ("guesses", "guess_a is stored as 5"): lambda c: c[1].update(source="guess_a = 5"),
    ("guesses", "guess_a is compared nowhere"): lambda c: c[4].update(source="1"),
    ("guesses", "two guesses have one name"): lambda c: c[1].update(source="guess_b = ..."),
    ("guesses", "no cell shows guesses.score()"): lambda c: c[-1].update(source="1"),
    ("names", "code cell 4 deletes a name"): lambda c: c[4].update(source=c[4].source + "\ndel x\n%reset -f out"),
}


@pytest.mark.parametrize(("rule", "message"), BROKEN, ids=lambda text: text)
def test_a_broken_rule_is_named(broken, rule, message):
    found = broken(BROKEN[rule, message])
    assert list(found) == [rule] and message in found[rule][0]


@pytest.mark.parametrize("number", ["01", "01b"])
def test_a_notebook_takes_30_minutes_at_most(broken, number):
    def long(cells):
        cells[0].source = f"# {number} · Why?\n**30 minutes**\n" + "word " * 5_300

    assert broken(long, f"{number}_topic.ipynb") == {
        "minutes": ["it takes 30.2 minutes: wanted 30 at most, or a second lesson"]
    }


def test_digits_and_deletions_may_be_meant(broken):
    def meant(cells):
        cells[4].update(source=cells[4].source + "\ndel x", outputs=[printing("0.30000000000000004")])
        cells[4].metadata["tags"] = ["digits", "del"]

    assert broken(meant) == {}


def test_collapsing(tmp_path):
    notebook = good_chapter()
    notebook.cells[9].metadata["jupyter"] = {"source_hidden": True}
    nbformat.write(notebook, path := tmp_path / "01_topic.ipynb")
    assert [collapse(path), collapse(path)] == [True, False]
    assert nbformat.read(path, as_version=4).cells[9].metadata.jupyter == COLLAPSED
    assert problems(path) == {}


def test_the_command_says_what_may_still_be_broken(tmp_path, capsys, monkeypatch):
    notebook = good_chapter()
    notebook.cells[-1].source = "1"
    nbformat.write(notebook, path := tmp_path / "01_topic.ipynb")
    assert chapter_shape.main([str(path)]) == 1
    monkeypatch.setattr(chapter_shape, "NOT_YET", {"01_topic": ["guesses"]})
    assert chapter_shape.main([str(path)]) == 0
    assert "01_topic: guesses (not yet): no cell shows guesses.score()" in capsys.readouterr().out


# --- minutes and syllabi --------------------------------------------------------------------------------


def test_minutes_count_words_code_and_output_and_leave_exercises_out():
    text = new_markdown_cell("**9 minutes** " + "word " * 173 + "- | → [a link](https://a.b/c?d=e)")
    code = new_code_cell("x = 1\n\n" * 12, outputs=[printing("line\n" * 15)])
    html = "<table><tr></tr>" + "<tr></tr>" * 99
    code.outputs.append(new_output("execute_result", {"text/plain": "x\n" * 15, "text/html": html}))
    unmodeled = [new_markdown_cell("word " * 1000) for _ in range(3)]
    unmodeled[0].metadata["tags"], unmodeled[1].metadata["tags"] = ["exercise"], ["solution"]
    unmodeled[2].metadata["slideshow"] = {"slide_type": "notes"}
    notebook = new_notebook(cells=[text, code, *unmodeled])
    assert minutes.computed(notebook) == pytest.approx(180 / 180 + 1 + 1)
    assert minutes.claimed(notebook) == 9
    assert minutes.claimed(new_notebook(cells=[new_markdown_cell("| time | 10 minutes |")])) == 10
    assert minutes.claimed(new_notebook(cells=[new_markdown_cell("no time")])) is None


def test_a_syllabus_fits_its_hours_and_begins_at_the_start():
    known = dict.fromkeys(minutes.ORDER, 25)
    for hours, share in minutes.HOURS.items():
        chosen = minutes.syllabus(known, hours)
        reading = sum(known[number] for number in chosen)
        assert chosen == sorted(chosen) and chosen[0] == "00"
        assert 0.7 * share <= reading / (hours * 60) <= share
    assert set(minutes.syllabus(known, 2)) < set(minutes.syllabus(known, 4)) < set(minutes.syllabus(known, 8))


def test_every_notebook_has_a_place_in_the_order_of_reading():
    assert {minutes.key(path) for path in NOTEBOOKS} <= set(minutes.ORDER)


def test_the_syllabi_are_those_of_the_chapters_claims():
    written = minutes.PAGE.read_text(encoding="utf-8")
    assert written == minutes.page(minutes.load()), "run: python -m tools.minutes --write"
