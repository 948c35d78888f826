"""The summary table: rows made in notebooks, found there again."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

import labkit
from labkit.techniques import MIME, Technique, collect, summary

MiB = 2**20
WORDS = {"use": "the batch does not fit", "saves_nothing": "weights fill the GPU"}


@pytest.fixture(autouse=True)
def gpu():
    with labkit.simulated_gpu("A100-80GB"):
        yield


def technique(method="accumulation", peak=(400 * MiB, 300 * MiB), seconds=(0.5, 0.6), backward=None):
    return Technique(method, "three Linear layers", peak, seconds, **WORDS, backward=backward)


def test_a_row_says_what_was_saved_and_what_it_cost():
    row = technique().row()
    assert row["peak of the step (MiB)"] == "400 → 300"
    assert (row["memory"], row["step time"]) == ("-25.0 %", "× 1.20")
    assert row["peak of backward (MiB)"] == "not separate"
    assert row["measured on"] == "simulated A100-80GB"
    assert technique(seconds=None).row()["step time"] == "not measured"
    text = summary(technique())._repr_mimebundle_()["text/plain"]
    assert text == "accumulation: step 400 → 300 MiB, step time × 1.20"


def test_backward_has_a_peak_of_its_own():
    """Where the optimizer's step peaks, a technique for activations lowers the one and not the other."""
    one = technique(peak=(400 * MiB, 400 * MiB), backward=(400 * MiB, 96 * MiB))
    assert one.row()["peak of backward (MiB)"] == "400 → 96.0"
    assert one.row()["peak of the step (MiB)"] == "400 → 400"
    with pytest.raises(ValueError, match="above the whole step's"):
        technique(peak=(400 * MiB, 300 * MiB), backward=(400 * MiB, 301 * MiB))


@pytest.mark.parametrize(
    "wrong", [{"peak": (1,)}, {"peak": (0, 5)}, {"seconds": (1.0, -1.0)}, {"peak": (1.5, 2)}, {"backward": (1,)}]
)
def test_what_is_no_pair_is_refused(wrong):
    with pytest.raises(ValueError, match=r"not|whole"):
        technique(**wrong)


def test_each_method_once():
    with pytest.raises(ValueError, match="each once"):
        summary(technique(), technique())
    with pytest.raises(ValueError, match="none"):
        summary()


def test_a_few_rows_are_shown_as_columns():
    def rows_shown(count):
        shown = summary(*(technique(f"technique {n}") for n in range(count)))._repr_mimebundle_()["text/html"]
        return str(shown).split("<tbody>")[1].count("<tr>")

    assert (rows_shown(2), rows_shown(5), rows_shown(6)) == (8, 8, 6)


def test_notebooks_keep_their_rows(tmp_path):
    for name, method in (("10_b", "checkpointing"), ("09_a", "accumulation")):
        bundle = summary(technique(method, backward=(4 * MiB, 3 * MiB)))._repr_mimebundle_()
        notebook = new_notebook(cells=[new_code_cell("1", outputs=[new_output("display_data", data=bundle)])])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    found = collect(tmp_path)
    assert found.rows == tuple(
        technique(name, backward=(4 * MiB, 3 * MiB)) for name in ("accumulation", "checkpointing")
    )
    assert MIME in found._repr_mimebundle_() and "checkpointing" in repr(found.table())


def test_a_folder_without_notebooks(tmp_path):
    with pytest.raises(FileNotFoundError, match="no notebooks"):
        collect(tmp_path)
