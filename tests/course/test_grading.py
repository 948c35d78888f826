"""`course.py grade`: a reader's answers get points, a reader's judge gets none, and what cannot be graded is said."""

import itertools
import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import course
from tools.grading import __main__ as command
from tools.grading import literal
from tools.grading.chapter import Chapter
from tools.grading.grade import grade, worth
from tools.grading.report import as_json, as_text
from tools.grading.submission import CannotBeGraded, Submission

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def exercise(name, source, solution="..."):
    """The cells of an exercise: its task, its stub, its solution."""
    task, stub = new_markdown_cell(f"1. **{name}.** What is it?"), new_code_cell(source)
    solved = new_code_cell(solution)
    task.metadata["tags"] = stub.metadata["tags"] = ["exercise"]
    solved.metadata["tags"] = ["solution"]
    return [task, stub, solved]


def right_of(number, right, more=""):
    return f"answer_{number} = ...\n{more}\njudge(answer_{number}, right={right})"


@pytest.fixture
def folder(tmp_path):
    """A course of one chapter with seven exercises."""
    cells = [
        new_markdown_cell("# A chapter"),
        new_code_cell("from labkit import judge\n\nwidth = 1024\n\n\ndef size(n):\n    return 4 * n"),
        *exercise("Bytes", right_of(1, "lambda: size(width)")),
        *exercise("Parts", 'answer_2 = {"a": ..., "b": ...}\njudge(answer_2, right={"a": 1, "b": 2})'),
        *exercise("Text", right_of(3, '"more"')),
        *exercise(
            "Function",
            "answer_4 = ...\n\nfound = answer_4(3) if callable(answer_4) else answer_4\njudge(found, right=size(3))",
        ),
        *exercise("Again", right_of(5, "size(5)")),
        *exercise("Once more", right_of(6, "size(6)")),
        *exercise("The last", right_of(7, "lambda: print('measured') or size(7)")),
    ]
    (tmp_path / "course").mkdir()
    nbformat.write(new_notebook(cells=cells), tmp_path / "course" / "01_topic.ipynb")
    return tmp_path


def copy_of(folder, name="mine.ipynb", lesson=None, drop=(), behind=None, **sources):
    """A reader's copy: `answer_3="..."` replaces the source of the third exercise's cell."""
    notebook = nbformat.read(folder / "course" / "01_topic.ipynb", as_version=4)
    if lesson:
        notebook.cells[1].source = lesson
    stubs = [
        cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", []) and cell.cell_type == "code"
    ]
    for answer, source in sources.items():
        stubs[int(answer[-1]) - 1].source = source
    if behind:
        number, source = behind
        notebook.cells.insert(notebook.cells.index(stubs[number - 1]) + 1, new_code_cell(source))
    gone = [stubs[number - 1] for number in drop]
    notebook.cells = [cell for cell in notebook.cells if cell not in gone]
    nbformat.write(notebook, folder / name)
    return Submission(folder / name, folder / "course")


def graded(submission, seconds=60):
    return {one.number: one for one in grade(submission, "A100-80GB", ROOT, seconds)}


def test_points_go_to_answers_and_not_to_judges(folder):
    cheating = "judge = lambda *a, **k: print('Correct')\nanswer_3 = 'less'\njudge(answer_3, right='less')"
    function = "def twice(n):\n    return 2 * n\n\n\ndef answer_4(n):\n    size = None\n    return 2 * twice(n)\n\n\n"
    submission = copy_of(
        folder,
        lesson="from labkit import judge\n\nwidth = 1\n\n\ndef size(n):\n    return 0",  # the reader's own size
        answer_1=right_of(1, "lambda: size(width)").replace("...", "4 * 1024"),
        answer_2='answer_2 = {"a": 1, "b": 5}\njudge(answer_2, right={"a": 1, "b": 2})',
        answer_3=cheating,
        answer_4=function + "found = answer_4(3) if callable(answer_4) else answer_4\njudge(found, right=size(3))",
        answer_5=right_of(5, "size(5)").replace("...", "1 / 0"),
        behind=(6, "answer_6 = 24  # tried out below the exercise\njudge(answer_6, right=24)"),
        drop=(7,),
    )
    results = graded(submission)
    assert {n: one.points for n, one in results.items()} == {
        1: 1, 2: Fraction(1, 2), 3: 0, 4: 1, 5: 0, 6: 1, 7: 0
    }  # fmt: skip
    assert results[1].verdict == "Correct: 4,096 B, to the byte"
    assert results[2].verdict == "1 of 2 are right; look again at b"
    assert results[3].verdict == "'less' is not it" and results[3].changed == ('judge(answer_3, right="more")',)
    assert results[5].error == "ZeroDivisionError: division by zero" and results[5].answered
    assert results[7].verdict == "the exercise is not in the notebook" and not results[7].answered
    assert [n for n, one in results.items() if one.changed] == [3]
    written = as_json(submission, list(results.values()), "A100-80GB")
    assert (written["points"], written["of"], written["share"]) == (3.5, 7, 50.0)
    assert written["exercises"][4]["error"] == "ZeroDivisionError: division by zero"
    json.dumps(written)
    text = list(as_text(submission, list(results.values()), "A100-80GB"))
    assert text[1] == "     1 of 1   1. Bytes. Correct: 4,096 B, to the byte"
    assert text[-1] == "   3.5 of 7   (50 %)"


@pytest.fixture
def endless(folder, monkeypatch):
    """A cell that does not end. The graders' clock stands still, but for a jump once that cell has begun: at the second
    look, since the first may be the one that the cell's seconds are counted from."""
    begun, looks = folder / "begun", itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 1e6 if begun.exists() and next(looks) else 0)
    monkeypatch.setattr("tools.grading.process.time", clock)
    return f"import time\n\nopen({str(begun)!r}, 'w').close()\nwhile True:\n    time.sleep(0.1)"


def test_an_answer_that_says_yes_to_everything_is_none(folder, endless):
    """Nor is a function that binds the judge's names anew; a cell that does not end, or ends everything, gets 0."""
    yes = "class Yes:\n    def __eq__(self, other):\n        return True\n\n\nanswer_3 = Yes()\njudge(answer_3, 'more')"
    wrong = "def answer_4(n):\n    return 7\n\n\ndef size(n):\n    return 7\n\n\njudge = lambda *a, **k: None\n"
    results = graded(
        copy_of(
            folder,
            answer_1="answer_1 = (\n",
            answer_3=yes,
            answer_4=wrong + "found = answer_4(3) if callable(answer_4) else answer_4\njudge(found, right=size(3))",
            answer_5=endless,
            answer_6=right_of(6, "size(6)").replace("...", "24"),
            answer_7="import os\n\nos._exit(1)",
        ),
        seconds=15,
    )
    assert {n: one.points for n, one in results.items()} == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 1, 7: 0}
    assert results[1].error.startswith("SyntaxError")
    assert results[2].verdict == "no answer yet" and not results[2].answered
    assert results[3].verdict.endswith("this is a Yes")
    assert results[4].verdict == "off by -5 B (-41.7 %)"
    assert results[5].error == "took more than 15 s"
    assert results[7].error == "the notebook's process ended here"


@pytest.mark.parametrize(
    "more", ["answer_5, rest = 20, 0", "answer_5 = 4\nanswer_5 += 16", "for answer_5 in (4, 20): ..."]
)
def test_an_answer_that_is_computed_below_the_dots_is_one(folder, more):
    source = f"answer_5 = ...\n{more}\njudge(answer_5, right=size(5))"
    attempt = copy_of(folder, answer_5=source).attempts[4]
    assert attempt.touched and attempt.untouched_slots == set() and attempt.changed == []


def test_what_a_measurement_prints_is_no_verdict(folder):
    results = graded(
        copy_of(folder, answer_7='answer_7 = "28 B"\n\njudge(answer_7, right=lambda: print("measured") or size(7))')
    )
    assert (results[7].points, results[7].verdict, results[7].changed) == (1, "Correct: 28 B, to the byte", ())


def test_nothing_is_run_where_nothing_is_answered(folder, monkeypatch):
    monkeypatch.setattr("tools.grading.grade.Process", None)
    assert {(one.points, one.answered, one.verdict) for one in graded(copy_of(folder)).values()} == {
        (0, False, "no answer yet")
    }


def test_a_copy_is_known_by_its_cells(folder):
    """Under another name, and after an editor that writes no ids."""
    submission = copy_of(folder, name="of_ada.ipynb", answer_5=right_of(5, "size(5)").replace("...", "20"))
    assert submission.chapter.path.stem == "01_topic"
    notebook = nbformat.read(folder / "of_ada.ipynb", as_version=4)
    for cell in notebook.cells:
        del cell["id"]
    notebook.nbformat_minor = 4
    nbformat.write(notebook, folder / "of_ada.ipynb")
    again = Submission(folder / "of_ada.ipynb", folder / "course")
    assert [(a.cells, a.touched, a.changed) for a in again.attempts] == [
        (a.cells, a.touched, a.changed) for a in submission.attempts
    ]
    assert [a.exercise.number for a in again.attempts if a.touched] == [5]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such notebook"),
        ("print(1)", "is not a notebook"),
        ('{"a": 1}', "has no list of cells"),
        ('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "no exercises of the course"),
    ],
)
def test_what_cannot_be_graded_is_said_with_status_2(tmp_path, capsys, content, said):
    path = tmp_path / "mine.ipynb"
    if content is not None:
        path.write_text(content)
    assert command.main([str(path)]) == 2
    assert said in capsys.readouterr().err


def test_a_copy_without_its_exercises_is_no_copy(folder):
    with pytest.raises(CannotBeGraded, match="none of the 7 exercises of 01_topic is in it"):
        copy_of(folder, drop=range(1, 8))


def test_the_status_says_whether_the_required_share_is_reached(tmp_path, capsys):
    chapter = CHAPTERS[0]
    assert command.main([str(chapter), "--json", str(tmp_path / "points.json"), "--pass", "0"]) == 0
    assert command.main([str(chapter), "--json", "-", "--pass", "60"]) == 1
    printed = capsys.readouterr().out
    written = json.loads((tmp_path / "points.json").read_text())
    assert written == json.loads(printed[printed.index("{") :])
    assert written["chapter"] == chapter.stem and written["points"] == 0 < written["of"]


def test_the_command_is_told_what_it_lacks(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, said in ([], "grade wants a notebook"), (["none.ipynb"], "no such notebook: none.ipynb"):
        with pytest.raises(SystemExit) as ended:
            course.check("grade", arguments)
        assert ended.value.code == 2 and said in capsys.readouterr().out
    (tmp_path / "mine.ipynb").touch()
    course.check("grade", ["mine.ipynb", "--pass", "60"])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_exercise_of_the_course_can_be_graded(path):
    exercises = Chapter(path).exercises
    assert exercises
    for one in exercises:
        assert one.slots, one.task
        assert sum("judge(" in statement.source for statement in one.judge) == 1, one.task
        assert 3 < len(one.task) < 60


@pytest.mark.parametrize(
    "value", [1, -2.5, float("inf"), True, None, ..., "a'b", [1, (2,)], {"a": {1, 2}, 3: set()}, (), {}]
)
def test_a_plain_value_is_a_literal_and_comes_back(value):
    said = literal.text(value)
    assert literal.is_literal(said)
    assert eval(said) == value


def test_what_is_not_plain_is_no_literal():
    namespace = {"f": test_what_is_not_plain_is_no_literal, "o": object(), "n": 1}
    told = json.loads(literal.told(namespace, ["f", "o", "n", "gone"]))
    assert [kind for kind, _ in told.values()] == ["function", "other", "plain", "missing"]
    assert not literal.is_literal("__import__('os').getcwd()")


@pytest.mark.parametrize(
    ("verdict", "points"),
    [
        ("Correct: 4", 1),
        ("2 of 4 are right; look again at a", Fraction(1, 2)),
        ("off by 2 B", 0),
        ("'Correct' is not it", 0),
    ],
)
def test_a_verdict_is_worth(verdict, points):
    assert worth(verdict) == points
