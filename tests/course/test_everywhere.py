"""The notebooks are true on every GPU, at other sizes, run twice and after the exercises; and the tool that tells."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools import minutes, notebooks
from tools.not_yet import NOT_YET
from tools.notebooks import Way

READY = [path for path in sorted(minutes.NOTEBOOKS.glob("*.ipynb")) if "everywhere" not in NOT_YET.get(path.stem, ())]
EVERY = [(path, way) for path in READY for way in notebooks.every_way(path)]


@pytest.mark.everywhere
@pytest.mark.parametrize(("path", "way"), EVERY, ids=[f"{path.stem}-{way}" for path, way in EVERY])
def test_a_notebook_says_nothing_false(path, way):
    assert [str(one) for one in notebooks.run(path, way)] == []


QUICK = Way("T4", twice=True)


@pytest.mark.parametrize("path", [path for path in READY if minutes.key(path) == "03"], ids=lambda path: path.stem)
def test_a_notebook_says_nothing_false_on_a_t4_with_each_cell_twice(path):
    assert [str(one) for one in notebooks.run(path, QUICK)] == []


# --- the tool, on notebooks that are written here --------------------------------------------------------


def cell(source, *verdicts, tags=()):
    """A code cell that prints, with the stored output of its first run."""
    outputs = [new_output("stream", text=" ".join(verdicts) + "\n")] if verdicts else []
    return new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)} if tags else {})


@pytest.fixture
def reports(tmp_path):
    """What is reported of a notebook of these cells, run in that way: (number, which run, what)."""

    def ask(way, *cells):
        path = tmp_path / "01_topic.ipynb"
        nbformat.write(new_notebook(cells=list(cells)), path)
        return [(one.cell, one.run, one.what) for one in notebooks.run(path, way)]

    return ask


def test_errors_and_contradictions_are_reported_each_where_it_happens(reports):
    cells = (
        cell("import os\nx = 4\nx"),
        cell("batch = 8  # rows; try 2, 16 or 1_000\nbatch = batch // 1\nprint(batch == 8)", "True"),
        cell("x = x - 1\nprint(x == 3)", "True"),
        cell("print(os.environ['LABKIT_GPU'] == 'T4')", "False"),
        cell("print(os.environ['LABKIT_GPU'] == 'T4')", "False", tags=["varies"]),
        cell("print(x == 3)", "True", tags=["nbval-ignore-output"]),
        cell("1 / 0", tags=["raises-exception"]),
        cell("1 / (x - 2)"),
        cell("x = 4"),
    )
    assert reports(Way("T4", twice=True, after_exercises=True, sizes={"batch": "16"}), *cells) == [
        (2, "", "verdicts are False; stored are True"),
        (2, ", second time", "verdicts are False; stored are True"),
        (3, ", second time", "verdicts are False; stored are True"),
        (4, "", "verdicts are True; stored are False"),
        (4, ", second time", "verdicts are True; stored are False"),
        (8, "", "ZeroDivisionError: division by zero"),
        (8, ", second time", "ZeroDivisionError: division by zero"),
        (2, ", after the exercises", "verdicts are False; stored are True"),
        (4, ", after the exercises", "verdicts are True; stored are False"),
    ]


def test_wrong_answers_that_are_called_correct_are_reported(reports):
    cells = (
        cell("answer_1 = ...  # bytes\nprint('no answer yet' if answer_1 is ... else 'Correct')", "no answer yet"),
        cell("guess_a = ...\nprint(guess_a)", "Ellipsis"),
    )
    assert reports(Way(wrong_answers=True), *cells) == [(1, "", "verdicts are Correct; stored are none")]


def test_a_size_that_the_notebook_does_not_have_is_refused(reports):
    with pytest.raises(ValueError, match=r"01_topic\.ipynb has no line rows = \.\.\."):
        reports(Way(sizes={"rows": "3"}), cell("batch = 8"))


def test_the_sizes_that_a_notebook_invites_to(tmp_path):
    cells = [cell("batch = 8  # rows; try 2, 16 or 1_000"), cell("length = 4\nwidth = 64  # try 128")]
    nbformat.write(new_notebook(cells=cells), path := tmp_path / "01_topic.ipynb")
    wanted = [{"batch": "2"}, {"batch": "16"}, {"batch": "1_000"}, {"width": "128"}]
    assert notebooks.invited(path) == wanted
    every = notebooks.every_way(path)
    assert {way.gpu for way in every} == {None, *notebooks.GPUS}
    assert [way.gpu for way in every if way.twice and way.after_exercises] == [None, "T4"]
    assert [way.sizes for way in every if way.sizes] == [sizes for sizes in wanted for _ in range(2)]
    assert sum(way.wrong_answers for way in every) == 1


def test_a_notebook_about_one_gpu_is_run_on_no_other(tmp_path):
    first = cell('gpu = labkit.use_gpu("H100", only_simulated=True)')
    nbformat.write(new_notebook(cells=[first, cell("batch = 8  # try 2")]), path := tmp_path / "01_topic.ipynb")
    assert notebooks.every_way(path) == [
        Way(None, True, True),
        Way(None, sizes={"batch": "2"}),
        Way(wrong_answers=True),
    ]
    later = [cell('gpu = labkit.use_gpu("H100")'), first]
    nbformat.write(new_notebook(cells=later), path)
    assert {way.gpu for way in notebooks.every_way(path)} == {None, *notebooks.GPUS}


def test_the_command(tmp_path, capsys, monkeypatch):
    nbformat.write(new_notebook(cells=[cell("print(1 == 2)", "True")]), path := tmp_path / "01_topic.ipynb")
    assert notebooks.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "01_topic (the course's GPU): 1 to report" in out
    assert "code cell 1: verdicts are False; stored are True\n    print(1 == 2)" in out
    asked = []
    monkeypatch.setattr(notebooks, "run", lambda path, way: asked.append(way) or [])
    assert notebooks.main([str(path), "--gpu", "T4", "--gpu", "H100", "--twice", "--set", "batch=3"]) == 0
    assert asked == [Way("T4", True, sizes={"batch": "3"}), Way("H100", True, sizes={"batch": "3"})]
    for wrong in (["99"], ["--set", "batch"]):
        with pytest.raises(SystemExit):
            notebooks.main(wrong)
